"use strict";
const names = JSON.parse(document.getElementById("names").textContent);
const records = JSON.parse(document.getElementById("records").textContent);
const body = document.getElementById("utterances"), player = document.getElementById("player");
const search = document.getElementById("search"), wrong = document.getElementById("wrong");
const PAGE = 200;
let key = 2, descending = true, limit = PAGE, stopAt = null;

function make(tag, text, name) {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  if (name) element.className = name;
  return element;
}
const say = (steps, side) => steps.map(s => s[side] ?? "").join(" ");
const haystacks = records.map(r => [r[0], r[1], ...r[6].flatMap(steps => [say(steps, 1), say(steps, 2)])]
  .join("\n").toLowerCase());

function play(record, seconds) {
  if (!record[4]) return;
  const address = new URL(record[4], location.href).href;
  stopAt = record[5][1];
  const begin = () => { player.currentTime = seconds ?? record[5][0]; player.play(); };
  if (player.src === address) begin();
  else { player.src = address; player.addEventListener("loadedmetadata", begin, {once: true}); }
}
player.addEventListener("timeupdate", () => {
  if (stopAt !== null && player.currentTime >= stopAt) { player.pause(); stopAt = null; }
});

function drawAlignment(record, steps, name) {
  const line = make("div", "", "words");
  line.dir = "auto";
  if (name) line.append(make("span", name + ": ", "name"));
  for (const [kind, reference, hypothesis, seconds] of steps) {
    const word = make("span", kind === "i" ? hypothesis : reference, {s: "sub", x: "case", d: "del", i: "ins"}[kind]);
    if (kind === "s" || kind === "x") word.append(make("small", " \u2192 " + hypothesis));
    if (record[4]) {
      word.title = seconds === null ? "play the utterance" : "play from " + seconds.toFixed(2) + " s";
      word.addEventListener("click", () => play(record, seconds));
    }
    line.append(word, " ");
  }
  return line;
}

function draw() {
  const wanted = search.value.toLowerCase();
  const found = records.map((r, n) => n)
    .filter(n => haystacks[n].includes(wanted) && (!wrong.checked || records[n][2] > 0));
  const sign = descending ? -1 : 1;
  found.sort((a, b) => {
    const x = records[a][key], y = records[b][key];
    return x < y ? -sign : x > y ? sign : a - b;
  });
  body.replaceChildren(...found.slice(0, limit).map(n => {
    const r = records[n], row = make("tr");
    row.append(make("td", r[0]), make("td", r[1]), make("td", String(r[2])), make("td", String(r[3])));
    const cell = make("td");
    r[6].forEach((steps, s) => cell.append(drawAlignment(r, steps, names.length > 1 ? names[s] : "")));
    row.append(cell);
    return row;
  }));
  const more = document.getElementById("found");
  more.textContent = found.length + " found" + (found.length > limit ? ", " + limit + " shown " : "");
  if (found.length > limit) {
    const button = make("button", "show more");
    button.addEventListener("click", () => { limit += PAGE; draw(); });
    more.append(button);
  }
}
for (const control of [search, wrong]) control.addEventListener("input", () => { limit = PAGE; draw(); });
for (const head of document.querySelectorAll("th[data-key]")) head.addEventListener("click", () => {
  const chosen = Number(head.dataset.key);
  descending = chosen === key ? !descending : chosen > 1;
  key = chosen;
  draw();
});
draw();
