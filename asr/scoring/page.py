"""Style and script of the page that asr.scoring.report writes."""

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em;
  padding: 0 1em; color: #222; }
h1 { font-size: 1.3em; overflow-wrap: anywhere; } h2 { font-size: 1.05em; margin-top: 2em; }
table { border-collapse: collapse; } th, td { padding: .2em .6em; text-align: right; vertical-align: top; }
th { border-bottom: 1px solid #999; font-weight: 600; } td { border-bottom: 1px solid #e5e5e5; }
td:first-child, th:first-child, #utterances td:nth-child(2), #utterances td:last-child { text-align: left; }
th[data-key] { cursor: pointer; text-decoration: underline dotted; }
#utterances td:first-child { overflow-wrap: anywhere; }
.quiet, .tick { color: #666; fill: #666; font-size: .85em; } .verdict { font-weight: 600; }
.notes { background: #fff6d8; padding: .6em 2em; } svg text { font-size: 12px; }
.interval { stroke: #36618e; stroke-width: 4; stroke-linecap: round; opacity: .5; } circle { fill: #36618e; }
.s0 { fill: #36618e; background: #36618e; } .s1 { fill: #c2571a; background: #c2571a; }
.s2 { fill: #4c8c4a; background: #4c8c4a; } .s3 { fill: #86538f; background: #86538f; }
.s4 { fill: #b3892c; background: #b3892c; } .s5 { fill: #666; background: #666; }
.bar { text-anchor: middle; } .key { display: inline-block; width: .8em; height: .8em; margin-left: 1em; }
.heat { font-size: .85em; }
.heat td { border: 1px solid #eee; min-width: 1.6em; text-align: center; padding: .1em; }
.heat th span { writing-mode: vertical-rl; }
.heat th { text-align: right; border: 0; vertical-align: bottom; }
.words span { cursor: pointer; border-radius: 3px; padding: 0 .1em; unicode-bidi: isolate; }
.sub { background: #ffe3a3; } .del { background: #ffc9c9; text-decoration: line-through; }
.ins { background: #c9e7ff; } .case { background: #e8dcff; }
.sub small, .case small { color: #7a4b00; } .name { color: #666; font-size: .85em; }
"""

# Texts go into the page as text nodes only, so that no transcript can be markup.
SCRIPT = """
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
  .join("\\n").toLowerCase());

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
  for (const [kind, said, heard, seconds] of steps) {
    const word = make("span", kind === "i" ? heard : said, {s: "sub", x: "case", d: "del", i: "ins"}[kind]);
    if (kind === "s" || kind === "x") word.append(make("small", " \\u2192 " + heard));
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
"""
