// The web page: transcribes files and the microphone; the text follows playback, can be edited and downloaded.

const $ = (id) => document.getElementById(id);
const UNSURE = 0.5, DOUBTFUL = 0.8; // confidences below which a word is marked
const MAX_UNSENT_BYTES = 1 << 22; // of live audio; with more, the connection is too slow

// All recordings: one is shown and one is in progress; the others wait or are done.
// {name, sound, model, languages, asked, hasSpeakers, segments, names, language, duration, status, share, error, isDone}
// Their segments: {start, end, text, speaker, words: [{word, start, end, confidence}]}
const jobs = [];
let shown = null, running = null;
let problem = ""; // message about the page itself, such as a server that does not respond
let spans = []; // spans of all words shown, ordered by time
let models; // promise that resolves when the list of models has been requested
let stopWork = null; // ends the upload or recording in progress

// --- server -------------------------------------------------------------------------------------

const headers = () => ($("key").value ? { authorization: `Bearer ${$("key").value}` } : {});

async function loadModels() {
  const answer = await fetch("/v1/models", { headers: headers() }).catch(() => null);
  if (!answer) return fail("The server does not respond.");
  if (answer.status === 401) return askForKey();
  if (!answer.ok) return fail(`The server responded with status ${answer.status}.`);
  const { data } = await answer.json();
  $("model").replaceChildren(...data.map(({ id, languages, language_names }) => {
    const option = new Option(id, id);
    option.languages = new Map(languages.map((code, i) => [code, language_names[i].replace(/^./, (letter) => letter.toUpperCase())]));
    return option;
  }));
  const hasSpeakers = data.every(({ speakers }) => speakers);
  $("speakers").disabled = !hasSpeakers;
  $("no-speakers").hidden = hasSpeakers;
  showLanguages();
}

function askForKey() {
  $("key-label").hidden = false;
  $("key").focus();
  fail($("key").value ? "The server does not accept this API key." : "This server requires an API key. Enter it above.");
}

function showLanguages() {
  const languages = findLanguages();
  const options = [...languages].map(([code, name]) => new Option(name, code)).sort((a, b) => a.text.localeCompare(b.text));
  if (languages.size !== 1) options.unshift(new Option(languages.size ? "Detect" : "Model's language", ""));
  $("language").replaceChildren(...options);
  $("language").disabled = languages.size < 2;
}

const findLanguages = () => $("model").selectedOptions[0]?.languages ?? new Map();

// --- state of the page --------------------------------------------------------------------------

function fail(message) {
  problem = message;
  showState();
}

function addJob(name, sound) {
  const job = {
    name, sound, model: $("model").value, languages: findLanguages(), asked: $("language").value, hasSpeakers: $("speakers").checked,
    segments: [], names: new Map(), language: null, duration: 0, status: "Waiting", share: 0, error: "", isDone: false,
  };
  job.row = document.createElement("li");
  job.button = document.createElement("button");
  job.button.type = "button";
  job.button.onclick = () => show(job);
  job.row.append(job.button);
  $("jobs").append(job.row);
  jobs.push(job);
  update(job, {});
  return job;
}

function update(job, changes) {
  Object.assign(job, changes);
  const state = document.createElement("span");
  state.textContent = job.error || [job.status, nameLanguage(job)].filter(Boolean).join(", ");
  job.button.replaceChildren(job.name, state);
  const left = jobs.filter(({ isDone }) => !isDone);
  $("jobs").hidden = jobs.length < 2;
  $("cancel").hidden = !left.length;
  $("cancel").textContent = left.length > 1 ? "Cancel all" : "Cancel";
  $("talk").disabled = left.some(({ sound }) => sound) && !isTalking();
  if (job === shown) showState();
}

function finish(job, status, error = "") {
  stopWork = running = null;
  update(job, { status, error: error || job.error, isDone: true });
  if (job === shown) $("partial").replaceChildren();
  workOn(jobs.find(({ isDone }) => !isDone));
}

function cancelAll() {
  jobs.filter((job) => !job.isDone && job !== running).forEach((job) => update(job, { status: "Cancelled", isDone: true }));
  stopWork?.();
}

// The server names the language if there is a choice; otherwise the model has only one.
function nameLanguage({ language, languages, isDone }) {
  if (language) return languages.get(language) ?? language;
  return isDone && languages.size === 1 ? [...languages.values()][0] : "";
}

function showState() {
  $("error").textContent = problem || shown?.error || "";
  $("error").hidden = !$("error").textContent;
  if (!shown) return;
  $("status").textContent = shown.status;
  $("progress").hidden = shown.isDone || !shown.share;
  $("progress").value = shown.share;
  $("name").textContent = shown.name;
  const language = nameLanguage(shown);
  $("found-language").textContent = language && shown.languages.size > 1 && !shown.asked ? `${language} (detected)` : language;
}

function show(job) {
  if (job === shown) return;
  stopEditing();
  shown = job;
  jobs.forEach((one) => one.button.setAttribute("aria-current", one === job));
  $("partial").replaceChildren();
  $("result").hidden = false;
  setSound(job.sound);
  showText();
  showState();
}

function setSound(blob) {
  URL.revokeObjectURL($("player").src);
  if (blob) $("player").src = URL.createObjectURL(blob);
  $("player-row").hidden = !blob;
}

// --- a file -------------------------------------------------------------------------------------

async function addFiles(files) {
  await models; // the user may be faster than the list of models
  problem = "";
  const added = [...files].map((file) => addJob(file.name, file));
  if (!added.length || running) return;
  show(added[0]);
  workOn(added[0]);
}

function workOn(job) {
  if (!job) return;
  running = job;
  const request = new XMLHttpRequest();
  const form = new FormData();
  form.append("model", job.model);
  form.append("stream", "true");
  form.append("include[]", "asr.segments");
  if (job.asked) form.append("language", job.asked);
  if (job.hasSpeakers) form.append("response_format", "diarized_json");
  form.append("file", job.sound);
  let read = 0, isComplete = false;
  request.upload.onprogress = (event) => {
    const share = event.loaded / event.total;
    const status = share < 1 ? `Uploading: ${Math.round(100 * share)} %`
      : job.hasSpeakers ? "Waiting for the text, which appears all at once with speaker labels" : "Waiting for the first words";
    update(job, { status, share: 0.3 * share });
  };
  const take = (event) => {
    if (event.error) job.error = event.error.message;
    if (event.type === "asr.segment") {
      add(job, event);
      const length = job === shown ? $("player").duration : NaN;
      const share = Number.isFinite(length) ? 0.3 + 0.7 * Math.min(1, event.end / length) : job.share;
      update(job, { status: `Transcribed up to ${clock(event.end)}`, share });
    }
    if (event.type === "transcript.text.done") {
      isComplete = true;
      update(job, { language: event.language, duration: event.duration, error: (event.warnings ?? []).join("; ") });
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
    else job.error = readError(request.responseText, request.status);
    if (request.status === 401) askForKey();
    finish(job, isComplete ? describeEnd(job) : "Failed");
  };
  request.onerror = () => finish(job, "Failed", "The connection to the server was lost.");
  request.onabort = () => finish(job, "Cancelled");
  stopWork = () => request.abort();
  request.open("POST", "/v1/audio/transcriptions");
  for (const [name, value] of Object.entries(headers())) request.setRequestHeader(name, value);
  request.send(form);
}

function readError(text, status) {
  try { return JSON.parse(text).error.message; } catch { return `The server responded with status ${status}.`; }
}

const describeEnd = ({ segments }) => (segments.length ? "Done" : "Done: no speech found");

// --- the microphone -----------------------------------------------------------------------------

async function talk() {
  await models;
  if (!navigator.mediaDevices) {
    return fail("The microphone needs a page at https:// or on this machine.");
  }
  problem = "";
  const job = (running = addJob("microphone", null));
  show(job);
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
    if (pieces.length) job.sound = makeWav(pieces, context.sampleRate);
    if (job === shown) setSound(job.sound);
    finish(job, message);
  };
  stopWork = () => end("Cancelled");
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
    context = new AudioContext();
    if (context.sampleRate > 48000) context = new AudioContext({ sampleRate: 48000 });
    await context.audioWorklet.addModule("pcm-worklet.js");
    await context.resume();
  } catch (error) {
    job.error = `The microphone cannot be used: ${error.message}`;
    return end("Failed");
  }
  if (isOver) { // cancelled while the browser asked for permission
    stream.getTracks().forEach((track) => track.stop());
    return context.close();
  }
  const address = new URL(`/v1/realtime?intent=transcription&model=${encodeURIComponent(job.model)}`, location.href);
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
        transcription: job.asked ? { language: job.asked } : {},
      } },
    } });
    context.createMediaStreamSource(stream).connect(writer);
    update(job, { status: "Listening" });
  };
  writer.port.onmessage = ({ data: { piece, peak } }) => {
    $("level").value = peak;
    if (isOver) return;
    if (socket.bufferedAmount > MAX_UNSENT_BYTES) {
      job.error = "The connection is too slow for live speech.";
      return end("Failed");
    }
    pieces.push(piece);
    send("input_audio_buffer.append", { audio: toBase64(new Uint8Array(piece.buffer)) });
  };
  let words = [];
  socket.onmessage = ({ data }) => {
    const event = JSON.parse(data);
    if (event.type === "error" && event.error.code !== "input_audio_buffer_commit_empty") update(job, { error: event.error.message });
    if (event.type.endsWith("transcription.failed")) update(job, { error: event.error.message });
    if (event.type === "asr.partial" && job === shown) showPartial(event.stable, event.text);
    if (event.type === "asr.words") words = event.words;
    if (event.type.endsWith("transcription.completed")) {
      if (job === shown) showPartial("", "");
      if (words.length) add(job, { start: words[0].start, end: words.at(-1).end, text: event.transcript, words });
      words = [];
    }
    if (event.type === "input_audio_buffer.cleared") end(describeEnd(job)); // everything before it is done
  };
  socket.onclose = ({ code }) => {
    if (isOver) return;
    if (code !== 1000) {
      job.error = code === 1006 ? "The server refused the session, or the connection was lost." : `The session ended (${code}).`;
    }
    end(job.error ? "Failed" : describeEnd(job));
  };
  $("talk").onclick = () => {
    update(job, { status: "Waiting for the last words" });
    writer.disconnect();
    stream.getTracks().forEach((track) => track.stop());
    send("input_audio_buffer.commit");
    send("input_audio_buffer.clear");
  };
}

const isTalking = () => $("talk").getAttribute("aria-pressed") === "true";

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

function add(job, { start, end, text, words, speaker }) {
  if (!text) return;
  const segment = { start, end, text, words, speaker };
  if (speaker && !job.names.has(speaker)) job.names.set(speaker, speaker);
  job.segments.push(segment);
  if (job === shown) showSegment(segment);
}

function showText() {
  $("transcript").replaceChildren();
  spans = [];
  shown.segments.forEach(showSegment);
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
  button.className = `speaker color-${[...shown.names.keys()].indexOf(label) % 6}`;
  button.dataset.speaker = label;
  button.textContent = shown.names.get(label);
  button.title = "Rename this speaker";
  button.onclick = () => {
    const name = prompt(`Name of ${shown.names.get(label)}`, shown.names.get(label))?.trim();
    if (!name) return;
    shown.names.set(label, name);
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
  let low = 0, high = spans.length; // binary search for the last word that has started
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
  for (const { element, start } of shown.segments) {
    element.contentEditable = "plaintext-only";
    element.setAttribute("role", "textbox");
    element.setAttribute("aria-label", `Text at ${clock(start)}`);
  }
  shown.segments[0]?.element.focus();
}

function stopEditing() {
  if (!isEditing()) return;
  $("edit").setAttribute("aria-pressed", "false");
  takeEdits();
  showText();
}

// If the number of words is unchanged they keep their times; otherwise they divide the segment evenly.
function takeEdits() {
  for (const segment of shown.segments) {
    const text = segment.element.textContent.trim();
    if (text === segment.text) continue;
    const parts = text.split(/\s+/).filter(Boolean), old = segment.words;
    const step = (segment.end - segment.start) / Math.max(1, parts.length);
    segment.words = parts.map((word, i) => ({
      ...(parts.length === old.length ? old[i] : { start: segment.start + i * step, end: segment.start + (i + 1) * step }),
      word,
      confidence: 1, // because someone has checked it
    }));
    segment.text = text;
  }
}

// The server writes the file with the same code as `asr transcribe`.
async function download(format) {
  if (isEditing()) takeEdits();
  const { name, names, language, duration, segments } = shown;
  const id = name.replace(/(.)\.[^.]*$/, "$1");
  const described = segments.filter(({ text }) => text).map(({ start, end, text, words, speaker }) => ({
    start, end, text,
    diarized: names.get(speaker) ?? null,
    confidence: words.reduce((sum, one) => sum + one.confidence, 0) / Math.max(1, words.length),
    words: words.map(({ word, ...rest }) => ({ text: word, ...rest })),
  }));
  const transcript = {
    id, audio: name, duration: Math.max(duration, ...described.map(({ end }) => end)), language, segments: described,
  };
  const answer = await fetch("/v1/asr/transcript", {
    method: "POST", headers: headers(), body: JSON.stringify({ format, transcript }),
  }).catch(() => null);
  if (!answer) return fail("The server does not respond.");
  if (!answer.ok) return fail(readError(await answer.text(), answer.status));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = `${id}.${format}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// --- controls -----------------------------------------------------------------------------------

$("choose").onclick = () => $("file").click();
$("file").onchange = () => {
  addFiles([...$("file").files]); // a copy, because the next line empties the list
  $("file").value = "";
};
$("cancel").onclick = cancelAll;
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
  addFiles([...event.dataTransfer.files]);
});
setTalking(false);
models = loadModels();
