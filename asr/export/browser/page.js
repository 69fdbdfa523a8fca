// The page: files and the microphone to text. A worker runs the model.

const $ = (id) => document.getElementById(id);
const BLOCK_SECONDS = 2; // of a file, after which the text and the progress are updated
const MAX_FILE_BYTES = 5e8; // decoded samples take many times as much

let model = null; // {sampleRate, language, isLive}

// --- the worker ---------------------------------------------------------------------------------

// A worker from an address would not have the content security policy of this page; one from a blob has it.
const code = `import ${JSON.stringify(new URL("worker.js", import.meta.url))}`;
const worker = new Worker(URL.createObjectURL(new Blob([code], { type: "text/javascript" })), { type: "module" });
const waiting = []; // for answers, which come in the order of the requests

const ask = (request, values) => new Promise((resolve, reject) => {
  waiting.push({ resolve, reject });
  worker.postMessage({ request, ...values });
});

worker.onmessage = ({ data: { progress, found, error } }) => {
  if (progress) return showStatus(`Loading the model: ${Math.round(progress.bytes / 1e6)} MB`, progress.bytes / progress.total);
  const { resolve, reject } = waiting.shift();
  if (error === undefined) resolve(found);
  else reject(new Error(error));
};

worker.onerror = () => fail("The model cannot run here: this browser is too old, or files of this page are missing.");

// --- what is shown ------------------------------------------------------------------------------

function fail(message) {
  $("error").textContent = message;
  $("error").hidden = !message;
}

function showStatus(status, share = null) {
  $("status").textContent = status;
  $("progress").hidden = share === null;
  $("progress").value = Math.min(1, share || 0);
}

function setBusy(isBusy) {
  $("choose").disabled = $("talk").disabled = isBusy || !model;
}

// Runs one thing at a time, and shows its errors.
async function run(work) {
  const focused = document.activeElement; // a button loses the focus while it is disabled
  fail("");
  setBusy(true);
  try {
    await work();
    showStatus("Done");
  } catch (error) {
    showStatus("Failed");
    fail(error.message);
  }
  setBusy(false);
  focused.focus();
}

function addText(name) {
  const article = $("text").content.cloneNode(true).firstElementChild;
  const text = article.querySelector("p"), button = article.querySelector("button");
  article.querySelector("h2").textContent = name;
  if (model.language) text.lang = model.language;
  button.onclick = () => navigator.clipboard.writeText(text.textContent).then(
    () => (button.textContent = "Copied"), () => getSelection().selectAllChildren(text));
  $("texts").prepend(article);
  return text;
}

// --- files --------------------------------------------------------------------------------------

const transcribeFiles = (files) => run(async () => {
  for (const file of files) {
    showStatus(`Reading ${file.name}`, 0);
    const samples = await readSamples(file), size = BLOCK_SECONDS * model.sampleRate;
    const text = addText(file.name);
    await ask("begin");
    for (let first = 0; first < samples.length; first += size) {
      showStatus(`Transcribing ${file.name}`, first / samples.length);
      const isLast = first + size >= samples.length;
      text.textContent = await ask("push", { samples: samples.slice(first, first + size), isLast });
    }
    text.textContent ||= "(no speech found)";
  }
});

// The mean of all channels at the model's rate.
async function readSamples(file) {
  if (file.size > MAX_FILE_BYTES) throw new Error(`${file.name} has more than 500 MB, which this page cannot read; cut it first.`);
  const context = new OfflineAudioContext(1, 1, model.sampleRate);
  const sound = await context.decodeAudioData(await file.arrayBuffer()).catch(() => {
    throw new Error(`${file.name} is not audio that this browser can read; WAV, FLAC, MP3 and Ogg usually are.`);
  });
  const channels = Array.from({ length: sound.numberOfChannels }, (_, i) => sound.getChannelData(i));
  return channels[0].map((_, i) => channels.reduce((sum, channel) => sum + channel[i], 0) / channels.length);
}

// --- the microphone -----------------------------------------------------------------------------

const talk = () => run(async () => {
  const context = new AudioContext({ sampleRate: model.sampleRate });
  let media = null;
  try {
    media = await openMicrophone();
    const text = addText("Microphone");
    await ask("begin");
    await context.audioWorklet.addModule("microphone.js");
    const node = new AudioWorkletNode(context, "microphone", { numberOfOutputs: 0 });
    context.createMediaStreamSource(media).connect(node);
    await new Promise((resolve, reject) => {
      node.port.onmessage = ({ data: samples }) => {
        $("level").value = samples.reduce((most, sample) => Math.max(most, Math.abs(sample)), 0);
        ask("push", { samples }).then((found) => (text.textContent = found), reject);
      };
      setTalking(true, resolve);
    });
    node.port.onmessage = null;
    showStatus("Waiting for the last words");
    text.textContent = await ask("push", { samples: new Float32Array(0), isLast: true }) || "(no speech found)";
  } finally {
    media?.getTracks().forEach((track) => track.stop());
    context.close();
    setTalking(false, talk);
  }
});

function openMicrophone() {
  if (!navigator.mediaDevices) throw new Error("The microphone needs a page at https:// or on this machine.");
  return navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } }).catch(({ message }) => {
    throw new Error(`The microphone cannot be used: ${message}.`);
  });
}

function setTalking(isOn, onClick) {
  $("talk").setAttribute("aria-pressed", isOn);
  $("talk").textContent = isOn ? "Stop" : "Talk";
  $("talk").disabled = false;
  $("talk").onclick = onClick;
  $("level-label").hidden = !isOn;
  if (!isOn) return;
  $("talk").focus();
  showStatus("Listening");
}

// --- controls -----------------------------------------------------------------------------------

$("choose").onclick = () => $("file").click();
$("talk").onclick = talk;
$("file").onchange = () => {
  const files = [...$("file").files]; // a copy, because the next line empties the list
  $("file").value = "";
  if (files.length) transcribeFiles(files);
};
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  const files = [...event.dataTransfer.files];
  if ($("choose").disabled) fail("The page is busy; drop files when it is done.");
  else if (files.length) transcribeFiles(files);
});
run(async () => {
  model = await ask("load");
  $("manner").textContent = model.isLive ? "The text appears while you talk." : "The text appears when you stop.";
});
