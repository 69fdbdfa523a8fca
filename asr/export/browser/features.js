// Features of a recording, equal to those of asr/features/front_end.py. Normalization (cmvn) is part of the graphs.

const PRE_EMPHASIS = 0.97;
const KALDI_FLOOR = 2 ** -23;
const WHISPER_FLOOR = 1e-10;
const LIFTER = 22;
const SETTINGS = ["convention", "type", "sample_rate", "window_ms", "shift_ms", "num_mels", "num_ceps", "cmvn"];

export class FrontEnd {
  // Samples in [-1, 1] are multiplied by `scale`, as the graphs expect.
  constructor(settings, scale) {
    const unknown = Object.keys(settings).filter((name) => !SETTINGS.includes(name));
    if (unknown.length) throw new Error(`This page does not know the setting features.${unknown[0]} of the model.`);
    if (!["kaldi", "icefall", "whisper"].includes(settings.convention)) {
      throw new Error(`This page does not know features of convention ${settings.convention}.`);
    }
    Object.assign(this, settings, { scale });
    this.isWhisper = settings.convention === "whisper";
    this.window = Math.floor((settings.sample_rate * settings.window_ms) / 1000);
    this.shift = Math.floor((settings.sample_rate * settings.shift_ms) / 1000);
    this.size = { samples: this.shift, mfcc: settings.num_ceps, log_mel: settings.num_mels }[settings.type];
    // Samples before the first and after the last one, which mirror those within; Kaldi itself has none.
    this.before = this.after = 0;
    if (this.isWhisper) this.before = this.after = this.window >> 1;
    if (settings.convention === "icefall") {
      this.before = (this.window >> 1) - (this.shift >> 1);
      this.after = this.window - this.shift + (this.shift >> 1) - this.before;
    }
    if (settings.type === "samples") return;
    this.fftSize = this.isWhisper ? this.window : 2 ** Math.ceil(Math.log2(this.window));
    this.measurePowers = makeTransform(this.fftSize);
    this.weights = makeWindow(this.window, this.isWhisper);
    this.bands = makeBands(settings, this.fftSize);
    if (settings.type === "mfcc") this.cosines = makeCosines(settings.num_mels, settings.num_ceps);
  }

  // The frames of a whole recording, one after the other in one array.
  compute(samples) {
    if (this.type === "samples") return this.cutSamples(samples);
    if (!this.isWhisper) return new FeatureStream(this).push(samples, true);
    if (samples.length <= this.window >> 1) return new Float32Array(0);
    const audio = mirrorEnds(samples, this.before, this.after, 1);
    return scaleLikeWhisper(this.computeFrames(audio, Math.floor(samples.length / this.shift)));
  }

  // The last sample of the last frame may be missing and is then 0.
  cutSamples(samples) {
    const features = new Float32Array(Math.floor((samples.length + 1) / this.shift) * this.shift);
    features.set(samples.subarray(0, features.length));
    return features.map((sample) => this.scale * sample);
  }

  computeFrames(audio, count) {
    const features = new Float32Array(count * this.size);
    const frame = new Float64Array(this.fftSize); // past the window it stays zero
    for (let index = 0; index < count; index++) {
      this.cutWindow(audio, index * this.shift, frame);
      const energies = this.measureBands(this.measurePowers(frame));
      const row = this.cosines ? this.cosines.map((cosines) => multiply(cosines, energies)) : energies;
      features.set(row, index * this.size);
    }
    return features;
  }

  cutWindow(audio, first, frame) {
    const { window, weights, scale } = this;
    if (this.isWhisper) {
      for (let i = 0; i < window; i++) frame[i] = scale * audio[first + i] * weights[i];
      return;
    }
    let mean = 0;
    for (let i = 0; i < window; i++) mean += audio[first + i] / window;
    for (let i = 1; i < window; i++) { // the first weight is 0
      const emphasized = audio[first + i] - mean - PRE_EMPHASIS * (audio[first + i - 1] - mean);
      frame[i] = scale * emphasized * weights[i];
    }
  }

  measureBands(powers) {
    return Float64Array.from(this.bands, ({ first, weights }) => {
      const energy = multiply(weights, powers.subarray(first, first + weights.length));
      return this.isWhisper ? Math.log10(Math.max(energy, WHISPER_FLOOR)) : Math.log(Math.max(energy, KALDI_FLOOR));
    });
  }
}

// Features of a recording that comes piece by piece, each as soon as its last sample is there.
export class FeatureStream {
  constructor(frontEnd) {
    this.frontEnd = frontEnd;
    this.isStarted = false;
    this.rest = new Float32Array(0);
  }

  push(samples, isLast) {
    const { frontEnd } = this;
    const { window, shift, before, after } = frontEnd;
    this.rest = join(this.rest, samples);
    if (!this.isStarted && this.rest.length < Math.max(1, before, after)) return new Float32Array(0);
    this.rest = mirrorEnds(this.rest, this.isStarted ? 0 : before, isLast ? after : 0, 0);
    this.isStarted = true;
    const count = Math.max(0, Math.floor((this.rest.length - window) / shift) + 1);
    const features = frontEnd.computeFrames(this.rest, count);
    this.rest = this.rest.slice(count * shift);
    return features;
  }
}

export function join(first, second) {
  const joined = new Float32Array(first.length + second.length);
  joined.set(first);
  joined.set(second, first.length);
  return joined;
}

function multiply(row, column) {
  let sum = 0;
  for (let i = 0; i < row.length; i++) sum += row[i] * column[i];
  return sum;
}

function makeWindow(size, isPeriodic) {
  const period = isPeriodic ? size : size - 1;
  const hann = Array.from({ length: size }, (_, i) => 0.5 - 0.5 * Math.cos((2 * Math.PI * i) / period));
  return isPeriodic ? hann : hann.map((weight) => weight ** 0.85);
}

// With `skipped` = 1, the first and last sample are not repeated.
function mirrorEnds(samples, before, after, skipped) {
  const start = samples.slice(skipped, before + skipped).reverse();
  const end = samples.slice(samples.length - after - skipped, samples.length - skipped).reverse();
  return join(join(start, samples), end);
}

function scaleLikeWhisper(features) {
  const loudest = features.reduce((most, value) => Math.max(most, value), -Infinity);
  return features.map((value) => (Math.max(value, loudest - 8) + 4) / 4);
}

// --- mel bands and cepstra ----------------------------------------------------------------------

const toKaldiMel = (hz) => 1127 * Math.log1p(hz / 700);
const toSlaneyMel = (hz) => (hz < 1000 ? (hz * 15) / 1000 : 15 + (27 * Math.log(hz / 1000)) / Math.log(6.4));
const fromSlaneyMel = (mel) => (mel < 15 ? (mel * 1000) / 15 : 1000 * 6.4 ** ((mel - 15) / 27));

function makeBands({ convention, sample_rate, num_mels }, size) {
  const isWhisper = convention === "whisper";
  const toMel = isWhisper ? toSlaneyMel : toKaldiMel;
  const low = toMel(isWhisper ? 0 : 20);
  const high = toMel(sample_rate / 2 - (convention === "icefall" ? 400 : 0));
  const step = (high - low) / (num_mels + 1);
  const edges = Array.from({ length: num_mels + 2 }, (_, i) => low + i * step);
  if (isWhisper) edges.forEach((mel, i) => (edges[i] = fromSlaneyMel(mel)));
  const bins = Array.from({ length: size / 2 + 1 }, (_, bin) => (bin * sample_rate) / size);
  const points = isWhisper ? bins : bins.map(toKaldiMel);
  return Array.from({ length: num_mels }, (_, band) => {
    const [left, peak, right] = edges.slice(band, band + 3);
    const height = isWhisper ? 2 / (right - left) : 1; // Slaney's triangles have area 1
    const weights = Float64Array.from(points, (point) =>
      height * Math.max(0, Math.min((point - left) / (peak - left), (right - point) / (right - peak))));
    const first = weights.findIndex((weight) => weight > 0);
    return { first, weights: weights.slice(first, weights.findLastIndex((weight) => weight > 0) + 1) };
  });
}

function makeCosines(numMels, numCeps) {
  return Array.from({ length: numCeps }, (_, order) => {
    const height = Math.sqrt((order ? 2 : 1) / numMels) * (1 + 0.5 * LIFTER * Math.sin((Math.PI * order) / LIFTER));
    return Float64Array.from({ length: numMels }, (_, band) => height * Math.cos((Math.PI / numMels) * (band + 0.5) * order));
  });
}

// --- Fourier transform of real frames, by tables of all cosines and sines ------------------------

function makeTransform(size) {
  const half = size >> 1;
  const makeRow = (compute, bin) => Float64Array.from({ length: half }, (_, i) => compute((2 * Math.PI * bin * i) / size));
  const bins = Array.from({ length: half + 1 }, (_, bin) => bin);
  const cosines = bins.map((bin) => makeRow(Math.cos, bin)), sines = bins.map((bin) => makeRow(Math.sin, bin));
  return (frame) => {
    // Both halves of the frame meet the same cosines, and sines of opposite sign.
    const sums = frame.slice(0, half), differences = frame.slice(0, half);
    for (let i = 1; i < half; i++) {
      sums[i] += frame[size - i];
      differences[i] -= frame[size - i];
    }
    return Float64Array.from(bins, (bin) => {
      const real = multiply(cosines[bin], sums) + (bin % 2 ? -frame[half] : frame[half]);
      return real ** 2 + multiply(sines[bin], differences) ** 2;
    });
  };
}
