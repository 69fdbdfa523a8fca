// Recognizes speech by the graphs of an export. Its folder's export.json is described in asr/export/description.py.

import { FeatureStream, FrontEnd, join } from "./features.js";
import { makeTokenizer } from "./tokenizer.js";

const RUNTIME = new URL("ort/", import.meta.url).href;
const MAX_BYTES = 1e9; // of all files; WebAssembly has 4 GB, and loading takes several copies
const CUT_SECONDS = 20; // longest piece, if the export does not say how long training utterances were
const MIN_SHARE = 0.4; // of the longest piece, before which speech is not cut
const CUTS_PER_SECOND = 10; // places at which it may be cut
const SILENCE = 1e-4; // loudest sample of a recording without sound

export async function loadRecognizer(folder, onProgress) {
  const runtime = await import(`${RUNTIME}ort.wasm.min.mjs`).catch(() => {
    throw new Error(`The files of onnxruntime-web are missing from ${RUNTIME}; see docs/browser.md for how to get them.`);
  });
  runtime.env.wasm.wasmPaths = RUNTIME;
  runtime.env.wasm.numThreads = 1; // threads need headers that a plain file server does not send
  const about = await readDescription(new URL("export.json", folder));
  const names = [about.tokenizer, ...Object.values(about.files)];
  const odd = names.find((name) => !/^[\w-][\w.-]*$/.test(name));
  if (odd !== undefined) throw new Error(`export.json names the file ${JSON.stringify(odd)}, which is not in its folder.`);
  const [tokenizer, ...graphs] = await download(names.map((name) => new URL(name, folder)), onProgress);
  const sessions = {};
  for (const [index, part] of Object.keys(about.files).entries()) {
    sessions[part] = await runtime.InferenceSession.create(graphs[index], { logSeverityLevel: 3 }).catch((error) => {
      throw new Error(`${about.files[part]} is not a graph that this browser can load; export the model again. (${error.message})`);
    });
  }
  return new Recognizer(runtime, about, sessions, makeTokenizer(JSON.parse(new TextDecoder().decode(tokenizer))));
}

async function readDescription(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`There is no model: ${address} does not exist. Copy this page into the folder of an export.`);
  const about = await answer.json().catch(() => ({}));
  if (about.format !== 1 || !["ctc", "transducer", "attention"].includes(about.kind)) {
    throw new Error(`${address} is not an export of format 1 and of kind ctc, transducer or attention.`);
  }
  return about;
}

async function download(addresses, onProgress) {
  const answers = await Promise.all(addresses.map((address) => fetch(address)));
  const missing = answers.find(({ ok }) => !ok);
  if (missing) throw new Error(`The export is incomplete: ${missing.url} does not exist.`);
  const total = answers.reduce((sum, { headers }) => sum + Number(headers.get("content-length")), 0);
  if (total > MAX_BYTES) {
    throw new Error(`The model is too large for a browser: ${(total / 1e9).toFixed(1)} GB, and at most 1 GB fits.`);
  }
  const files = [];
  let loaded = 0;
  for (const { body } of answers) {
    const parts = [];
    for (const reader = body.getReader(); ;) {
      const { done, value } = await reader.read();
      if (done) break;
      parts.push(value);
      loaded += value.length;
      onProgress(total ? loaded / total : 0, loaded);
    }
    files.push(new Uint8Array(await new Blob(parts).arrayBuffer()));
  }
  return files;
}

class Recognizer {
  constructor(runtime, about, sessions, decode) {
    Object.assign(this, { runtime, about, sessions, decode });
    this.frontEnd = new FrontEnd(about.features, about.sample_scale);
    if (about.streaming && (this.frontEnd.isWhisper || this.frontEnd.type === "samples")) {
      throw new Error("This page cannot run a model chunk by chunk whose features need the whole recording.");
    }
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
    return this.about.kind === "ctc" ? new CTCSearch(this) : new TransducerSearch(this);
  }

  async transcribe(samples) {
    const features = this.frontEnd.compute(samples);
    const count = features.length / this.frontEnd.size;
    if (!count) return "";
    const input = [this.floats(features, 1, count, this.frontEnd.size), this.ids([count], 1)];
    const [encoded, lengths] = await this.run("encoder", ...input);
    if (this.about.kind === "attention") return this.decode(await searchByAttention(this, encoded, lengths));
    const search = this.makeSearch();
    await search.push(encoded, Number(lengths.data[0]));
    return this.decode(search.tokens);
  }
}

// --- recordings ---------------------------------------------------------------------------------

// Pieces that are as long as training utterances, cut where it is quiet, are encoded one after the other.
class Recording {
  constructor(recognizer) {
    const { longest_seconds, max_seconds, sample_rate } = recognizer.about;
    this.recognizer = recognizer;
    this.limit = Math.min(longest_seconds ?? CUT_SECONDS, max_seconds ?? CUT_SECONDS, CUT_SECONDS) * sample_rate;
    this.rest = new Float32Array(0);
    this.texts = [];
  }

  async push(samples, isLast) {
    this.rest = join(this.rest, samples);
    while (this.rest.length > this.limit) {
      const cut = this.findQuietPlace();
      await this.transcribe(this.rest.slice(0, cut));
      this.rest = this.rest.slice(cut);
    }
    if (isLast) await this.transcribe(this.rest);
    return this.texts.join(" ");
  }

  findQuietPlace() {
    const step = Math.floor(this.recognizer.about.sample_rate / CUTS_PER_SECOND);
    let quietest = Infinity, place = 0;
    for (let first = Math.floor(MIN_SHARE * this.limit); first + step <= this.limit; first += step) {
      const power = this.rest.subarray(first, first + step).reduce((sum, sample) => sum + sample * sample, 0);
      if (power < quietest) [quietest, place] = [power, first + (step >> 1)];
    }
    return place;
  }

  async transcribe(samples) {
    if (!samples.some((sample) => Math.abs(sample) > SILENCE)) return;
    const text = await this.recognizer.transcribe(samples);
    if (text) this.texts.push(text);
  }
}

// Chunks of frames are encoded as soon as they are there; caches carry what later ones need.
class ChunkedRecording {
  constructor(recognizer) {
    this.recognizer = recognizer;
    this.stream = new FeatureStream(recognizer.frontEnd);
    this.search = recognizer.makeSearch();
    this.features = new Float32Array(0);
    this.caches = recognizer.about.streaming.caches.map(({ shape, type }) => {
      const size = shape.reduce((product, length) => product * length, 1);
      const values = { float32: Float32Array, int64: BigInt64Array, bool: Uint8Array }[type];
      if (!values) throw new Error(`This page does not know caches of type ${type}.`);
      return new recognizer.runtime.Tensor(type, new values(size), shape);
    });
  }

  async push(samples, isLast) {
    const { about, frontEnd } = this.recognizer;
    this.features = join(this.features, this.stream.push(samples, isLast));
    const size = about.streaming.frames * frontEnd.size;
    while (this.features.length >= size || (isLast && this.features.length)) {
      const chunk = this.features.slice(0, size);
      this.features = this.features.slice(size);
      await this.encode(join(chunk, new Float32Array(size - chunk.length)), chunk.length / frontEnd.size);
    }
    return this.recognizer.decode(this.search.tokens);
  }

  async encode(chunk, count) {
    const { recognizer } = this;
    const { frames, takes_lengths, caches } = recognizer.about.streaming;
    const lengths = takes_lengths ? [recognizer.ids([count], 1)] : [];
    const input = recognizer.floats(chunk, 1, frames, recognizer.frontEnd.size);
    const [encoded, ...rest] = await recognizer.run("encoder", input, ...lengths, ...this.caches);
    const steps = takes_lengths ? Number(rest.shift().data[0]) : encoded.dims[1];
    this.caches = this.caches.map((cache, i) => (caches[i].output ? rest.shift() : cache));
    await this.search.push(encoded, steps);
  }
}

// --- greedy searches, as in asr/export/graph_search.py ------------------------------------------

function findLargest(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

class CTCSearch {
  constructor({ about }) {
    this.blank = this.last = about.blank;
    this.tokens = [];
  }

  async push({ data, dims }, steps) {
    for (let step = 0; step < steps; step++) {
      const token = findLargest(data.subarray(step * dims[2], (step + 1) * dims[2]));
      if (token !== this.blank && token !== this.last) this.tokens.push(token);
      this.last = token;
    }
  }
}

class TransducerSearch {
  constructor(recognizer) {
    this.recognizer = recognizer;
    this.tokens = [];
    this.place = this.emitted = 0; // the next step, counted from the first one of the next push; tokens at it
  }

  async push({ data, dims }, steps) {
    const { blank, durations, max_tokens } = this.recognizer.about;
    const width = dims[2];
    this.predicted ??= await this.predict();
    while (this.place < steps) {
      const step = this.recognizer.floats(data.slice(this.place * width, (this.place + 1) * width), 1, width);
      const [logits] = await this.recognizer.run("joiner", step, this.predicted);
      const vocabulary = logits.data.length - durations.length;
      const token = findLargest(logits.data.subarray(0, vocabulary));
      const isToken = token !== blank;
      let move = durations.length ? durations[findLargest(logits.data.subarray(vocabulary))] : Number(!isToken);
      if (isToken) {
        this.tokens.push(token);
        this.emitted++;
        this.predicted = await this.predict();
      }
      if (!move && (!isToken || this.emitted >= max_tokens)) move = 1;
      if (move) this.emitted = 0;
      this.place += move;
    }
    this.place -= steps;
  }

  async predict() {
    const { recognizer, tokens } = this;
    const { start, predictor } = recognizer.about;
    if (predictor === "stateless") {
      return (await recognizer.run("decoder", recognizer.ids([start, start, ...tokens].slice(-2), 1, 2)))[0];
    }
    if (!this.state) {
      const [, layers, size] = recognizer.sessions.decoder.inputMetadata[1].shape;
      const zeros = recognizer.floats(new Float32Array(layers * size), 1, layers, size);
      this.state = [zeros, zeros];
    }
    const last = recognizer.ids([tokens.at(-1) ?? start], 1, 1);
    const [predicted, ...state] = await recognizer.run("decoder", last, ...this.state);
    this.state = state;
    return predicted;
  }
}

async function searchByAttention(recognizer, cross, lengths) {
  const { start, end, first, max_tokens } = recognizer.about;
  const [layers, two, count, heads, , size] = cross.dims;
  const most = Number(lengths.data[0]) * max_tokens;
  const tokens = [];
  let past = recognizer.floats(new Float32Array(0), layers, two, count, heads, 0, size);
  while (tokens.length < most) {
    const input = [recognizer.ids([tokens.at(-1) ?? start], 1, 1), cross, lengths, past];
    const [logits, next] = await recognizer.run("step", ...input);
    const scores = logits.data.map((score, id) => (id < first && id !== end ? -Infinity : score));
    const token = findLargest(scores);
    if (token === end) break;
    tokens.push(token);
    past = next;
  }
  return tokens;
}
