// Recognizes speech by the graphs of an export, whose export.json is described in asr/export/description.py.

import { FeatureStream, FrontEnd, join } from "./front_end.js";
import { SEARCHES } from "./searches.js";
import { makePieceJoiner, makeTokenizer } from "./tokenizer.js";

const FOLDER = new URL(".", import.meta.url).href;
const MAX_BYTES = 1e9; // of all files; WebAssembly has 4 GB, and loading takes several copies
const CUT_SECONDS = 20; // longest piece, if the export does not say how long training utterances were
const MIN_SHARE = 0.4; // of the longest piece, before which speech is not cut
const SILENCE = 1e-4; // loudest sample of a recording without sound
const MIN_MOONSHINE_SAMPLES = 896; // fewest of which Moonshine's encoder makes a step
const CACHE_TYPES = { float32: Float32Array, int64: BigInt64Array, bool: Uint8Array };

export async function loadRecognizer(onProgress) {
  const runtime = await import(`${FOLDER}ort/ort.wasm.min.mjs`).catch(() => {
    throw new Error(`The files of onnxruntime-web are missing from ${FOLDER}ort; docs/browser.md says how to get them.`);
  });
  runtime.env.wasm.wasmPaths = `${FOLDER}ort/`;
  runtime.env.wasm.numThreads = 1; // threads need headers that a plain file server does not send
  const about = await (await fetchFile("export.json")).json().catch(() => ({}));
  if (about.format !== 1 || !Object.hasOwn(SEARCHES, about.kind)) {
    throw new Error("export.json does not describe an export of format 1, of kind ctc, transducer, attention or moonshine.");
  }
  const parts = Object.keys(about.files);
  const names = [about.tokenizer ?? "tokens.txt", ...parts.map((part) => about.files[part])];
  const [tokenizer, ...graphs] = await download(names, onProgress);
  const sessions = {};
  for (const [index, part] of parts.entries()) {
    sessions[part] = await runtime.InferenceSession.create(graphs[index], { logSeverityLevel: 3 }).catch((error) => {
      throw new Error(`${about.files[part]} is not a graph that this browser can load; export the model again. (${error.message})`);
    });
  }
  const text = new TextDecoder().decode(tokenizer);
  const decode = about.kind === "moonshine" ? makePieceJoiner(text) : makeTokenizer(JSON.parse(text));
  return new Recognizer(runtime, about, sessions, decode);
}

async function fetchFile(name) {
  if (!/^[\w-][\w.-]*$/.test(name)) throw new Error(`export.json names the file ${JSON.stringify(name)}, which is not in its folder.`);
  const answer = await fetch(FOLDER + name);
  if (!answer.ok) throw new Error(`${name} is missing from ${FOLDER}; this page belongs into the folder of a complete export.`);
  return answer;
}

async function download(names, onProgress) {
  const answers = await Promise.all(names.map(fetchFile));
  const total = answers.reduce((sum, { headers }) => sum + Number(headers.get("content-length")), 0);
  if (total > MAX_BYTES) throw new Error(`The model is too large for a browser: ${(total / 1e9).toFixed(1)} GB, and 1 GB fits.`);
  const files = [];
  let loaded = 0;
  for (const { body } of answers) {
    const reader = body.getReader(), pieces = [];
    for (let piece; !(piece = await reader.read()).done;) {
      pieces.push(piece.value);
      onProgress({ bytes: (loaded += piece.value.length), total });
    }
    files.push(new Uint8Array(await new Blob(pieces).arrayBuffer()));
  }
  return files;
}

class Recognizer {
  constructor(runtime, about, sessions, decode) {
    Object.assign(this, { runtime, about, sessions, decode });
    this.frontEnd = about.features && new FrontEnd(about.features, about.sample_scale); // Moonshine reads samples
  }

  // Begins a recording, whose samples are then pushed in pieces of any length.
  begin() {
    return this.about.streaming ? new ChunkedRecording(this) : new Recording(this);
  }

  // Runs a graph; inputs and outputs are in the order of its description.
  async run(part, ...inputs) {
    const session = this.sessions[part];
    const found = await session.run(Object.fromEntries(session.inputNames.map((name, i) => [name, inputs[i]])));
    return session.outputNames.map((name) => found[name]);
  }

  floats(values, ...shape) {
    return new this.runtime.Tensor("float32", values, shape);
  }

  ids(values, ...shape) {
    return new this.runtime.Tensor("int64", BigInt64Array.from(values, BigInt), shape);
  }

  makeSearch() {
    return new SEARCHES[this.about.kind](this);
  }

  // Encodes frames, of which the first `count` are not padding, and searches. Returns the next caches.
  async encode(search, features, count, caches = [], takesLengths = true) {
    const size = this.frontEnd.size;
    const lengths = takesLengths ? [this.ids([count], 1)] : [];
    const input = this.floats(features, 1, features.length / size, size);
    const [encoded, ...rest] = await this.run("encoder", input, ...lengths, ...caches);
    await search.push(encoded, takesLengths ? Number(rest.shift().data[0]) : encoded.dims[1]);
    return rest;
  }
}

// Pieces no longer than training utterances, cut where it is quiet, are encoded one after the other.
class Recording {
  constructor(recognizer) {
    const { longest_seconds, max_seconds, sample_rate } = recognizer.about;
    this.recognizer = recognizer;
    const seconds = Math.min(longest_seconds ?? CUT_SECONDS, max_seconds ?? CUT_SECONDS, CUT_SECONDS);
    this.limit = Math.max(1, seconds) * sample_rate;
    this.rest = new Float32Array(0);
    this.texts = [];
  }

  async push(samples, isLast) {
    this.rest = join(this.rest, samples);
    while (this.rest.length > this.limit || (isLast && this.rest.length)) {
      const cut = this.rest.length > this.limit ? this.findQuietPlace() : this.rest.length;
      const piece = this.rest.slice(0, cut);
      this.rest = this.rest.slice(cut);
      if (piece.some((sample) => Math.abs(sample) > SILENCE)) this.texts.push(await this.transcribe(piece));
    }
    return this.texts.filter(Boolean).join(" ");
  }

  async transcribe(samples) {
    const { frontEnd } = this.recognizer, search = this.recognizer.makeSearch();
    if (!frontEnd) {
      const padded = new Float32Array(Math.max(samples.length, MIN_MOONSHINE_SAMPLES));
      padded.set(samples);
      await search.push(...(await this.recognizer.run("encoder", this.recognizer.floats(padded, 1, padded.length))));
      return this.recognizer.decode(search.tokens);
    }
    const features = frontEnd.compute(samples);
    if (features.length) await this.recognizer.encode(search, features, features.length / frontEnd.size);
    return this.recognizer.decode(search.tokens);
  }

  findQuietPlace() {
    const step = Math.floor(this.recognizer.about.sample_rate / 10);
    let quietest = Infinity, place = 0;
    for (let first = Math.floor(MIN_SHARE * this.limit); first + step <= this.limit; first += step) {
      const power = this.rest.subarray(first, first + step).reduce((sum, sample) => sum + sample * sample, 0);
      if (power < quietest) [quietest, place] = [power, first + (step >> 1)];
    }
    return place;
  }
}

// Chunks of frames are encoded as soon as they are there; caches carry what later ones need.
class ChunkedRecording {
  constructor(recognizer) {
    Object.assign(this, { recognizer }, recognizer.about.streaming);
    if (recognizer.frontEnd.isWhisper) throw new Error("Features of convention whisper need a whole recording, not chunks.");
    this.stream = new FeatureStream(recognizer.frontEnd);
    this.search = recognizer.makeSearch();
    this.features = new Float32Array(0);
    this.numSamples = 0;
    this.kept = this.caches.map(({ shape, type }) => {
      const size = shape.reduce((product, length) => product * length, 1);
      return new recognizer.runtime.Tensor(type, new CACHE_TYPES[type](size), shape);
    });
  }

  async push(samples, isLast) {
    const { size: width, shift } = this.recognizer.frontEnd;
    this.numSamples += samples.length;
    // An encoder that takes no lengths reads whole chunks, and silence until there is one more.
    const chunk = this.frames * shift, isFilled = isLast && !this.takes_lengths;
    const silence = new Float32Array(isFilled ? 2 * chunk - (this.numSamples % chunk || chunk) : 0);
    this.features = join(this.features, this.stream.push(join(samples, silence), isLast));
    for (const size = this.frames * width; this.features.length >= size || (isLast && this.features.length);) {
      const padded = new Float32Array(size), part = this.features.slice(0, size);
      padded.set(part);
      this.features = this.features.slice(size);
      this.kept = await this.recognizer.encode(this.search, padded, part.length / width, this.kept, this.takes_lengths);
    }
    return this.recognizer.decode(this.search.tokens);
  }
}
