// The page: files and the microphone to text. A worker runs the model.

const $ = (id) => document.getElementById(id);
const BLOCK_SECONDS = 2; // of a file, after which the text and the progress are updated
const MAX_FILE_BYTES = 5e8; // the decoded samples take many times as much

let model = null; // {kind, language, sampleRate, isStreaming}
let stop = null; // ends the work in progress

// --- the worker ---------------------------------------------------------------------------------

// A worker from an address would not have the content security policy of this page; one from a blob has it.
const code = `import ${JSON.stringify(new URL("worker.js", import.meta.url))}`;
const worker = new Worker(URL.createObjectURL(new Blob([code], { type: "text/javascript" })), { type: "module" });
const waiting = new Map();

function ask(request, values = {}) {
  return new Promise((resolve, reject) => {
    const id = crypto.randomUUID();
    waiting.set(id, { resolve, reject });
    worker.postMessage({ id, request, ...values });
  });
}

worker.onmessage = ({ data: { id, answer, error, share, bytes } }) => {
  if (id === undefined) return showProgress(`Loading the model: ${(bytes / 1e6).toFixed(0)} MB`, share);
  const { resolve, reject } = waiting.get(id);
  waiting.delete(id);
  if (error === undefined) resolve(answer);
  else reject(new Error(error));
};

worker.onerror = ({ message }) => fail(`The model cannot run in this browser: ${message ?? "modules in workers are missing"}`);

// --- what is shown ------------------------------------------------------------------------------

function fail(message) {
  $("error").textContent = message;
  $("error").hidden = !message;
}

function showProgress(status, share) {
  $("status").textContent = status;
  $("progress").hidden = share === undefined;
  if (share !== undefined) $("progress").value = share;
}

function addText(name) {
  const article = $("text").content.cloneNode(true).firstElementChild;
  const [text, button] = [article.querySelector("p"), article.querySelector("button")];
  article.querySelector("h2").textContent = name;
  if (model.language) text.lang = model.language;
  button.onclick = async () => {
    await navigator.clipboard.writeText(text.textContent).catch(() => getSelection().selectAllChildren(text));
    button.textContent = getSelection().isCollapsed ? "Copied" : "Selected";
  };
  $("texts").prepend(article);
  return text;
}

// Shows what runs, and errors of it. `work` takes a function that tells whether it was cancelled.
async function runWork(work) {
  let isCancelled = false;
  stop = () => (isCancelled = true);
  fail("");
  setBusy(true);
  try {
    await work(() => isCancelled);
    showProgress(isCancelled ? "Cancelled" : "Done");
  } catch (error) {
    showProgress("Failed");
    fail(error.message);
  }
  stop = null;
  setBusy(false);
}

function setBusy(isBusy) {
  $("choose").disabled = $("talk").disabled = isBusy || !model;
  $("cancel").hidden = !isBusy || !model;
}

// --- files --------------------------------------------------------------------------------------

const transcribeFiles = (files) => runWork(async (isCancelled) => {
  for (const file of files) {
    if (isCancelled()) return;
    showProgress(`Reading ${file.name}`, 0);
    const samples = await readSamples(file), size = BLOCK_SECONDS * model.sampleRate;
    const text = addText(file.name);
    await ask("begin");
    for (let first = 0; first < samples.length && !isCancelled(); first += size) {
      const isLast = first + size >= samples.length;
      text.textContent = await ask("push", { samples: samples.slice(first, first + size), isLast });
      showProgress(`Transcribing ${file.name}`, first / samples.length);
    }
    if (!text.textContent && !isCancelled()) text.textContent = "(no speech found)";
  }
});

// The mean of all channels at the model's rate.
async function readSamples(file) {
  if (file.size > MAX_FILE_BYTES) {
    throw new Error(`${file.name} has ${Math.round(file.size / 1e6)} MB, and this page takes at most 500 MB. Cut it first.`);
  }
  const context = new OfflineAudioContext(1, 1, model.sampleRate);
  const sound = await context.decodeAudioData(await file.arrayBuffer()).catch(() => {
    throw new Error(`${file.name} is not audio that this browser can read. WAV, FLAC, MP3 and Ogg usually are.`);
  });
  const channels = Array.from({ length: sound.numberOfChannels }, (_, i) => sound.getChannelData(i));
  return channels[0].map((_, i) => channels.reduce((sum, channel) => sum + channel[i], 0) / channels.length);
}

// --- the microphone -----------------------------------------------------------------------------

const talk = () => runWork(async (isCancelled) => {
  const microphone = await openMicrophone();
  const text = addText("Microphone");
  $("talk").disabled = false;
  setTalking(true);
  try {
    await ask("begin");
    showProgress("Listening");
    const done = new Promise((resolve) => ($("talk").onclick = stop = resolve));
    let last = Promise.resolve("");
    microphone.onSamples = (samples) => {
      $("level").value = samples.reduce((most, sample) => Math.max(most, Math.abs(sample)), 0);
      last = ask("push", { samples, isLast: false }).then((found) => (text.textContent = found));
      last.catch((error) => fail(error.message));
    };
    await done;
    microphone.close();
    showProgress("Waiting for the last words");
    await last;
    text.textContent = await ask("push", { samples: new Float32Array(0), isLast: true });
  } finally {
    microphone.close();
    setTalking(false);
  }
});

async function openMicrophone() {
  if (!navigator.mediaDevices) throw new Error("The microphone needs a page at https:// or on this machine.");
  const media = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } }).catch((error) => {
    throw new Error(`The microphone cannot be used: ${error.message}.`);
  });
  const context = new AudioContext({ sampleRate: model.sampleRate });
  await context.audioWorklet.addModule("microphone.js");
  const node = new AudioWorkletNode(context, "microphone", { numberOfOutputs: 0 });
  const microphone = { onSamples: () => {}, close() {
    media.getTracks().forEach((track) => track.stop());
    node.disconnect();
    context.close().catch(() => {});
  } };
  node.port.onmessage = ({ data }) => microphone.onSamples(data);
  context.createMediaStreamSource(media).connect(node);
  return microphone;
}

function setTalking(isOn) {
  $("talk").setAttribute("aria-pressed", isOn);
  $("talk").textContent = isOn ? "Stop" : "Talk";
  $("talk").onclick = talk;
  $("level-label").hidden = !isOn;
}

// --- controls -----------------------------------------------------------------------------------

async function load() {
  const name = new URLSearchParams(location.search).get("model") ?? ".";
  const folder = new URL(`${name}/`, location.href);
  if (folder.origin !== location.origin) throw new Error("The folder of the model has to be beside this page.");
  model = await ask("load", { folder: folder.href });
  const manner = model.isStreaming ? "writes while you talk" : "writes when a recording is over";
  $("model").textContent = `The model (${model.kind}) ${manner}. It runs in this page, and nothing is sent anywhere.`;
}

$("choose").onclick = () => $("file").click();
$("file").onchange = () => {
  const files = [...$("file").files]; // a copy, because the next line empties the list
  $("file").value = "";
  if (files.length) transcribeFiles(files);
};
$("cancel").onclick = () => stop();
addEventListener("dragover", (event) => {
  event.preventDefault();
  $("drop").classList.add("over");
});
addEventListener("dragleave", (event) => event.relatedTarget || $("drop").classList.remove("over"));
addEventListener("drop", (event) => {
  event.preventDefault();
  $("drop").classList.remove("over");
  const files = [...event.dataTransfer.files];
  if (!files.length) fail("What was dropped is not a file.");
  else if (!model || stop) fail("The page is busy; drop files when it is done.");
  else transcribeFiles(files);
});
setTalking(false);
runWork(load);
