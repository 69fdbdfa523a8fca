// The page: a file or the microphone to text with times, which can be read along, edited and downloaded.
import { formats } from "./formats.js";

const $ = (id) => document.getElementById(id);
const UNSURE = 0.5, DOUBTFUL = 0.8; // confidences below which a word is marked
const MAX_UNSENT_BYTES = 1 << 22; // of speech that the connection does not take

let segments = []; // {start, end, text, speaker, words: [{word, start, end, confidence}]}
let names = new Map(); // of the speakers, by their labels
let spans = []; // of all words, in the order of time
let title = "transcript";
let models; // resolves when their list has been tried
let stopWork = null; // ends the upload or the recording that is going on

// --- server -------------------------------------------------------------------------------------

const headers = () => ($("key").value ? { authorization: `Bearer ${$("key").value}` } : {});

async function loadModels() {
  const answer = await fetch("/v1/models", { headers: headers() }).catch(() => null);
  if (!answer) return fail("The server does not answer.");
  if (answer.status === 401) return askForKey();
  if (!answer.ok) return fail(`The server answers ${answer.status}.`);
  const { data } = await answer.json();
  $("model").replaceChildren(...data.map(({ id, languages }) => {
    const option = new Option(id, id);
    option.languages = languages;
    return option;
  }));
  showLanguages();
}

function askForKey() {
  $("key-label").hidden = false;
  $("key").focus();
  fail($("key").value ? "The server does not know this API key." : "Give the API key that the server asks for.");
}

function showLanguages() {
  const names = new Intl.DisplayNames(["en"], { type: "language" });
  const name = (code) => { try { return names.of(code); } catch { return code; } };
  const codes = $("model").selectedOptions[0]?.languages ?? [];
  const options = codes.map((code) => new Option(name(code), code)).sort((a, b) => a.text.localeCompare(b.text));
  $("language").replaceChildren(new Option(codes.length > 1 ? "Detect" : "Of the model", ""), ...options);
  $("language").disabled = codes.length < 2;
}

// --- state of the page --------------------------------------------------------------------------

function fail(message) {
  $("error").textContent = message;
  $("error").hidden = !message;
}

function begin(name) {
  stopWork?.();
  fail("");
  title = name.replace(/\.[^.]*$/, "") || "transcript";
  stopEditing();
  segments = [];
  names = new Map();
  show();
  $("partial").replaceChildren();
  $("result").hidden = false;
  $("cancel").hidden = false;
}

function finish(message) {
  stopWork = null;
  $("cancel").hidden = $("progress").hidden = true;
  $("status").textContent = message;
  $("partial").replaceChildren();
}

function setSound(blob) {
  URL.revokeObjectURL($("player").src);
  $("player").src = URL.createObjectURL(blob);
  $("player-row").hidden = false;
}

// --- a file -------------------------------------------------------------------------------------

async function transcribeFile(file) {
  await models; // somebody may be quicker than the list
  begin(file.name);
  setSound(file);
  const request = new XMLHttpRequest();
  const form = new FormData();
  form.append("model", $("model").value);
  form.append("stream", "true");
  form.append("include[]", "asr.segments");
  if ($("language").value) form.append("language", $("language").value);
  if ($("speakers").checked) form.append("response_format", "diarized_json");
  form.append("file", file);
  let read = 0, warnings = [], isDone = false;
  const progress = $("progress");
  progress.hidden = false;
  progress.value = 0;
  request.upload.onprogress = (event) => {
    const share = event.loaded / event.total;
    progress.value = 0.3 * share;
    $("status").textContent = share < 1 ? `Uploading ${file.name}: ${Math.round(100 * share)} %`
      : $("speakers").checked ? "Waiting for the text; with speakers it comes as a whole" : "Waiting for the first words";
  };
  const take = (event) => {
    if (event.error) fail(event.error.message);
    if (event.type === "asr.segment") {
      add(event);
      const length = $("player").duration;
      if (Number.isFinite(length)) progress.value = 0.3 + 0.7 * Math.min(1, event.end / length);
      $("status").textContent = `Transcribed up to ${clock(event.end)}`;
    }
    if (event.type === "transcript.text.done") {
      isDone = true;
      warnings = event.warnings ?? [];
    }
  };
  const takeNew = () => {
    for (let end; (end = request.responseText.indexOf("\n\n", read)) >= 0; read = end + 2) {
      const data = request.responseText.slice(read, end).replace(/^data: /, "");
      if (request.status === 200 && data !== "[DONE]") take(JSON.parse(data));
    }
  };
  request.onprogress = takeNew;
  request.onload = () => {
    if (request.status === 200) takeNew();
    else if (request.status === 401) askForKey();
    else fail(readError(request.responseText, request.status));
    if (warnings.length) fail(warnings.join("; "));
    finish(isDone ? describeEnd() : "");
  };
  request.onerror = () => { fail("The connection to the server broke."); finish(""); };
  request.onabort = () => finish("Cancelled");
  stopWork = () => request.abort();
  request.open("POST", "/v1/audio/transcriptions");
  for (const [name, value] of Object.entries(headers())) request.setRequestHeader(name, value);
  request.send(form);
}

function readError(text, status) {
  try { return JSON.parse(text).error.message; } catch { return `The server answers ${status}.`; }
}

const describeEnd = () => (segments.some(({ text }) => text) ? "Done" : "Done: there is no speech in it");

// --- the microphone -----------------------------------------------------------------------------

async function talk() {
  await models;
  if (!navigator.mediaDevices) {
    return fail("Browsers give the microphone to pages at https:// or on this machine only.");
  }
  begin("microphone");
  setTalking(true);
  let stream, context;
  const pieces = [];
  let socket = null, isOver = false;
  const end = (message) => {
    if (isOver) return;
    isOver = true;
    stream?.getTracks().forEach((track) => track.stop());
    context?.close();
    socket?.close();
    setTalking(false);
    if (pieces.length) setSound(makeWav(pieces, context.sampleRate));
    finish(message);
  };
  stopWork = () => end("Cancelled");
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
    context = new AudioContext();
    if (context.sampleRate > 48000) context = new AudioContext({ sampleRate: 48000 });
    await context.audioWorklet.addModule("pcm-worklet.js");
    await context.resume();
  } catch (error) {
    fail(`The microphone cannot be used: ${error.message}`);
    return end("");
  }
  if (isOver) { // cancelled while the browser asked
    stream.getTracks().forEach((track) => track.stop());
    return context.close();
  }
  const address = new URL(`/v1/realtime?intent=transcription&model=${encodeURIComponent($("model").value)}`, location.href);
  address.protocol = address.protocol.replace("http", "ws");
  const key = $("key").value;
  socket = new WebSocket(address, ["realtime", ...(key ? [`openai-insecure-api-key.${key}`] : [])]);
  const send = (type, values) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify({ type, ...values }));
  const writer = new AudioWorkletNode(context, "pcm-writer", { numberOfOutputs: 0 });
  socket.onopen = () => {
    send("session.update", { session: {
      type: "transcription",
      include: ["asr.partial", "asr.words"],
      audio: { input: {
        format: { type: "audio/pcm", rate: context.sampleRate },
        transcription: $("language").value ? { language: $("language").value } : {},
      } },
    } });
    context.createMediaStreamSource(stream).connect(writer);
    $("status").textContent = "Listening";
  };
  writer.port.onmessage = ({ data: { piece, peak } }) => {
    $("level").value = peak;
    if (isOver) return;
    if (socket.bufferedAmount > MAX_UNSENT_BYTES) {
      fail("The connection is too slow for live speech.");
      return end("");
    }
    pieces.push(piece);
    send("input_audio_buffer.append", { audio: toBase64(new Uint8Array(piece.buffer)) });
  };
  let words = [];
  socket.onmessage = ({ data }) => {
    const event = JSON.parse(data);
    if (event.type === "error" && event.error.code !== "input_audio_buffer_commit_empty") fail(event.error.message);
    if (event.type.endsWith("transcription.failed")) fail(event.error.message);
    if (event.type === "asr.partial") showPartial(event.stable, event.text);
    if (event.type === "asr.words") words = event.words;
    if (event.type.endsWith("transcription.completed")) {
      showPartial("", "");
      if (words.length) add({ start: words[0].start, end: words.at(-1).end, text: event.transcript, words });
      words = [];
    }
    if (event.type === "input_audio_buffer.cleared") end(describeEnd()); // all before it is done
  };
  socket.onclose = ({ code }) => {
    if (isOver) return;
    if (code !== 1000) fail(code === 1006 ? "The server did not take the session, or the connection broke." : `The session ended (${code}).`);
    end("");
  };
  $("talk").onclick = () => {
    $("status").textContent = "Waiting for the last words";
    writer.disconnect();
    stream.getTracks().forEach((track) => track.stop());
    send("input_audio_buffer.commit");
    send("input_audio_buffer.clear");
  };
}

function setTalking(isOn) {
  const button = $("talk");
  button.setAttribute("aria-pressed", isOn);
  button.textContent = isOn ? "Stop" : "Talk";
  button.onclick = isOn ? () => stopWork?.() : talk;
  $("level").parentElement.hidden = !isOn;
  $("level").value = 0;
}

function showPartial(stable, text) {
  const span = document.createElement("span");
  span.className = "stable";
  span.textContent = stable;
  $("partial").replaceChildren(span, stable && text ? " " : "", text);
}

function toBase64(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(text);
}

function makeWav(pieces, rate) {
  const numBytes = 2 * pieces.reduce((sum, piece) => sum + piece.length, 0);
  const view = new DataView(new ArrayBuffer(44));
  const put = (place, text) => [...text].forEach((letter, i) => view.setUint8(place + i, letter.charCodeAt(0)));
  put(0, "RIFF"); view.setUint32(4, 36 + numBytes, true); put(8, "WAVEfmt ");
  [[16, 16, 4], [20, 1, 2], [22, 1, 2], [24, rate, 4], [28, 2 * rate, 4], [32, 2, 2], [34, 16, 2]].forEach(
    ([place, value, size]) => (size === 4 ? view.setUint32(place, value, true) : view.setUint16(place, value, true)));
  put(36, "data"); view.setUint32(40, numBytes, true);
  return new Blob([view, ...pieces], { type: "audio/wav" });
}

// --- the transcript -----------------------------------------------------------------------------

function add({ start, end, text, words, speaker }) {
  if (!text) return;
  const segment = { start, end, text, words, speaker };
  if (speaker && !names.has(speaker)) names.set(speaker, speaker);
  segments.push(segment);
  showSegment(segment);
}

function show() {
  $("transcript").replaceChildren();
  spans = [];
  segments.forEach(showSegment);
}

function showSegment(segment) {
  const row = document.createElement("div");
  row.className = "segment";
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = clock(segment.start);
  button.setAttribute("aria-label", `Play from ${clock(segment.start)}`);
  button.onclick = () => jump(segment.start);
  const text = document.createElement("p");
  let place = 0;
  for (const word of segment.words) {
    const at = segment.text.indexOf(word.word, place);
    if (at < 0) continue;
    text.append(segment.text.slice(place, at));
    const span = document.createElement("span");
    span.className = "word" + (word.confidence < UNSURE ? " unsure" : word.confidence < DOUBTFUL ? " doubtful" : "");
    span.title = `${Math.round(100 * word.confidence)} %`;
    span.textContent = word.word;
    span.times = word;
    span.onclick = () => isEditing() || jump(word.start);
    text.append(span);
    spans.push(span);
    place = at + word.word.length;
  }
  text.append(segment.text.slice(place));
  segment.element = text;
  row.append(button, ...(segment.speaker ? [showSpeaker(segment.speaker)] : []), text);
  $("transcript").append(row);
}

function showSpeaker(label) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = `speaker color-${[...names.keys()].indexOf(label) % 6}`;
  button.dataset.speaker = label;
  button.textContent = names.get(label);
  button.title = "Rename this speaker";
  button.onclick = () => {
    const name = prompt(`Name of ${names.get(label)}`, names.get(label))?.trim();
    if (!name) return;
    names.set(label, name);
    const same = `[data-speaker="${CSS.escape(label)}"]`;
    document.querySelectorAll(same).forEach((other) => (other.textContent = name));
  };
  return button;
}

function clock(seconds) {
  const whole = Math.floor(seconds), two = (value) => String(value).padStart(2, "0");
  return (whole >= 3600 ? `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}` : Math.floor(whole / 60)) + `:${two(whole % 60)}`;
}

function jump(seconds) {
  $("player").currentTime = seconds;
  $("player").play().catch(() => {});
}

let now = null;
function follow() {
  const time = $("player").currentTime;
  let low = 0, high = spans.length; // the last word that has begun
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spans[middle].times.start <= time) low = middle + 1;
    else high = middle;
  }
  const span = spans[low - 1];
  const next = span && time < span.times.end + 0.3 ? span : null;
  if (next !== now) {
    now?.classList.remove("now");
    next?.classList.add("now");
    next?.scrollIntoView({ block: "nearest" });
    now = next;
  }
  if (!$("player").paused) requestAnimationFrame(follow);
}

const isEditing = () => $("edit").getAttribute("aria-pressed") === "true";

function startEditing() {
  $("edit").setAttribute("aria-pressed", "true");
  for (const { element, start } of segments) {
    element.contentEditable = "plaintext-only";
    element.setAttribute("role", "textbox");
    element.setAttribute("aria-label", `Text at ${clock(start)}`);
  }
  segments[0]?.element.focus();
}

function stopEditing() {
  if (!isEditing()) return;
  $("edit").setAttribute("aria-pressed", "false");
  takeEdits();
  show();
}

// Words keep their times where their number is the same; else the words share the time of the segment.
function takeEdits() {
  for (const segment of segments) {
    const text = segment.element.textContent.trim();
    if (text === segment.text) continue;
    const parts = text.split(/\s+/).filter(Boolean), old = segment.words;
    const step = (segment.end - segment.start) / Math.max(1, parts.length);
    segment.words = parts.map((word, i) => ({
      ...(parts.length === old.length ? old[i] : { start: segment.start + i * step, end: segment.start + (i + 1) * step }),
      word,
      confidence: 1, // somebody has looked at it
    }));
    segment.text = text;
  }
}

function download(format) {
  if (isEditing()) takeEdits();
  const kept = segments.filter(({ text }) => text).map((one) => ({ ...one, speaker: names.get(one.speaker) }));
  const blob = new Blob([formats[format](kept)], { type: format === "json" ? "application/json" : "text/plain" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${title}.${format}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// --- controls -----------------------------------------------------------------------------------

$("choose").onclick = () => $("file").click();
$("file").onchange = () => {
  if ($("file").files[0]) transcribeFile($("file").files[0]);
  $("file").value = "";
};
$("cancel").onclick = () => stopWork?.();
$("model").onchange = showLanguages;
$("key").value = sessionStorage.getItem("key") ?? "";
$("key").onchange = () => {
  sessionStorage.setItem("key", $("key").value);
  fail("");
  models = loadModels();
};
$("edit").onclick = () => (isEditing() ? stopEditing() : startEditing());
$("shade").onchange = () => $("transcript").classList.toggle("shaded", $("shade").checked);
$("player").onplay = $("player").onseeked = follow;
document.querySelectorAll("[data-format]").forEach((button) => (button.onclick = () => download(button.dataset.format)));
addEventListener("dragover", (event) => {
  event.preventDefault();
  $("drop").classList.add("over");
});
addEventListener("dragleave", (event) => event.relatedTarget || $("drop").classList.remove("over"));
addEventListener("drop", (event) => {
  event.preventDefault();
  $("drop").classList.remove("over");
  const [file, ...others] = event.dataTransfer.files;
  if (file) transcribeFile(file);
  if (others.length) fail("One file at a time: the first is transcribed.");
});
setTalking(false);
models = loadModels();
