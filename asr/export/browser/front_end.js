// Log-mel features of a recording, as asr/features/front_end.py computes them without cmvn, which the graphs do.

const PRE_EMPHASIS = 0.97;
const KALDI_FLOOR = 2 ** -23;
const WHISPER_FLOOR = 1e-10;
const SETTINGS = ["convention", "type", "sample_rate", "window_ms", "shift_ms", "num_mels", "num_ceps", "cmvn"];

export class FrontEnd {
  // Samples in [-1, 1] are multiplied by `scale`, as the graphs expect.
  constructor(settings, scale) {
    const { convention, type, sample_rate, window_ms, shift_ms, num_mels } = settings;
    const unknown = Object.keys(settings).find((name) => !SETTINGS.includes(name));
    if (unknown || type !== "log_mel" || !["kaldi", "icefall", "whisper"].includes(convention)) {
      throw new Error(`This page does not know the model's features: ${unknown ?? `type ${type}, convention ${convention}`}.`);
    }
    this.isWhisper = convention === "whisper";
    this.scale = scale;
    this.size = num_mels;
    this.window = Math.floor((sample_rate * window_ms) / 1000);
    this.shift = Math.floor((sample_rate * shift_ms) / 1000);
    // Samples before the first and after the last one, which mirror those within; Kaldi itself has none.
    this.before = this.after = this.isWhisper ? this.window >> 1 : 0;
    if (convention === "icefall") {
      this.before = (this.window >> 1) - (this.shift >> 1);
      this.after = this.window - this.shift + (this.shift >> 1) - this.before;
    }
    this.fftSize = this.isWhisper ? this.window : 2 ** Math.ceil(Math.log2(this.window));
    this.measurePowers = makeTransform(this.fftSize);
    this.weights = makeWindow(this.window, this.isWhisper);
    this.bands = makeBands(settings, this.fftSize);
  }

  // The frames of a whole recording, one after the other in one array.
  compute(samples) {
    if (!this.isWhisper) return new FeatureStream(this).push(samples, true);
    if (samples.length <= this.window >> 1) return new Float32Array(0);
    const audio = mirrorEnds(samples, this.before, this.after, 1);
    const features = this.computeFrames(audio, Math.floor(samples.length / this.shift));
    const loudest = features.reduce((most, value) => Math.max(most, value), -Infinity);
    return features.map((value) => (Math.max(value, loudest - 8) + 4) / 4);
  }

  computeFrames(audio, count) {
    const features = new Float32Array(count * this.size);
    const frame = new Float64Array(this.fftSize); // past the window it stays zero
    for (let index = 0; index < count; index++) {
      this.cutWindow(audio, index * this.shift, frame);
      const powers = this.measurePowers(frame);
      this.bands.forEach(({ first, weights }, band) => {
        const energy = multiply(weights, powers.subarray(first, first + weights.length));
        const level = this.isWhisper ? Math.log10(Math.max(energy, WHISPER_FLOOR)) : Math.log(Math.max(energy, KALDI_FLOOR));
        features[index * this.size + band] = level;
      });
    }
    return features;
  }

  cutWindow(audio, first, frame) {
    const emphasis = this.isWhisper ? 0 : PRE_EMPHASIS;
    let mean = 0;
    for (let i = 0; i < this.window && !this.isWhisper; i++) mean += audio[first + i] / this.window;
    for (let i = 1; i < this.window; i++) { // the first weight is 0
      const emphasized = audio[first + i] - mean - emphasis * (audio[first + i - 1] - mean);
      frame[i] = this.scale * emphasized * this.weights[i];
    }
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
    const { window, shift, before, after } = this.frontEnd;
    this.rest = join(this.rest, samples);
    if (!this.isStarted && this.rest.length < Math.max(before, after)) return new Float32Array(0);
    this.rest = mirrorEnds(this.rest, this.isStarted ? 0 : before, isLast ? after : 0, 0);
    this.isStarted = true;
    const count = Math.max(0, Math.floor((this.rest.length - window) / shift) + 1);
    const features = this.frontEnd.computeFrames(this.rest, count);
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

// With `skipped` = 1, the first and last sample are not repeated.
function mirrorEnds(samples, before, after, skipped) {
  const start = samples.slice(skipped, before + skipped).reverse();
  const end = samples.slice(samples.length - after - skipped, samples.length - skipped).reverse();
  return join(join(start, samples), end);
}

function makeWindow(size, isPeriodic) {
  const period = isPeriodic ? size : size - 1;
  const hann = Array.from({ length: size }, (_, i) => 0.5 - 0.5 * Math.cos((2 * Math.PI * i) / period));
  return isPeriodic ? hann : hann.map((weight) => weight ** 0.85);
}

const toKaldiMel = (hz) => 1127 * Math.log1p(hz / 700);
const toSlaneyMel = (hz) => (hz < 1000 ? (hz * 15) / 1000 : 15 + (27 * Math.log(hz / 1000)) / Math.log(6.4));
const fromSlaneyMel = (mel) => (mel < 15 ? (mel * 1000) / 15 : 1000 * 6.4 ** ((mel - 15) / 27));

function makeBands({ convention, sample_rate, num_mels }, size) {
  const isWhisper = convention === "whisper";
  const toMel = isWhisper ? toSlaneyMel : toKaldiMel;
  const low = toMel(isWhisper ? 0 : 20);
  const step = (toMel(sample_rate / 2 - (convention === "icefall" ? 400 : 0)) - low) / (num_mels + 1);
  const mels = Array.from({ length: num_mels + 2 }, (_, i) => low + i * step);
  const edges = isWhisper ? mels.map(fromSlaneyMel) : mels;
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

function multiply(row, column) {
  let sum = 0;
  for (let i = 0; i < row.length; i++) sum += row[i] * column[i];
  return sum;
}

// The powers of a frame of real numbers. Its halves meet the same cosines, and sines of opposite sign.
function makeTransform(size) {
  const half = size >> 1;
  const makeRow = (compute, bin) => Float64Array.from({ length: half }, (_, i) => compute((2 * Math.PI * bin * i) / size));
  const bins = Array.from({ length: half + 1 }, (_, bin) => bin);
  const cosines = bins.map((bin) => makeRow(Math.cos, bin)), sines = bins.map((bin) => makeRow(Math.sin, bin));
  return (frame) => {
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
