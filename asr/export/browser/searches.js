// Greedy searches, as in asr/export/graph_search.py. Encoded steps are pushed as they come.

const MOONSHINE_START = 1, MOONSHINE_END = 2;
const MOONSHINE_MIN_TOKENS = 6; // its graph allows as many for a text of any length, and later fewer than steps

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
    this.place = this.emitted = 0; // the next step, counted from the first one of a push; tokens at it
  }

  async push({ data, dims }, steps) {
    const { blank, durations, max_tokens } = this.recognizer.about;
    this.predicted ??= await this.predict();
    while (this.place < steps) {
      const first = this.place * dims[2];
      const step = this.recognizer.floats(data.slice(first, first + dims[2]), 1, dims[2]);
      const [logits] = await this.recognizer.run("joiner", step, this.predicted);
      const size = logits.data.length - durations.length;
      const token = findLargest(logits.data.subarray(0, size));
      let move = durations.length ? durations[findLargest(logits.data.subarray(size))] : Number(token === blank);
      if (token !== blank) {
        this.tokens.push(token);
        this.predicted = await this.predict();
        this.emitted++;
      }
      if (token === blank || this.emitted >= max_tokens) move = Math.max(move, 1);
      if (move) this.emitted = 0;
      this.place += move;
    }
    this.place -= steps;
  }

  async predict() {
    const { recognizer, tokens } = this;
    const { start, predictor } = recognizer.about;
    if (predictor === "stateless") {
      return (await recognizer.run("decoder", recognizer.ids([start, start, ...tokens.slice(-2)].slice(-2), 1, 2)))[0];
    }
    const [, layers, size] = recognizer.sessions.decoder.inputMetadata[1].shape;
    const state = this.state ?? Array(2).fill(recognizer.floats(new Float32Array(layers * size), 1, layers, size));
    const [predicted, ...next] = await recognizer.run("decoder", recognizer.ids([tokens.at(-1) ?? start], 1, 1), ...state);
    this.state = next;
    return predicted;
  }
}

class AttentionSearch {
  constructor(recognizer) {
    this.recognizer = recognizer;
    this.tokens = [];
  }

  async push(cross, steps) {
    const { recognizer, tokens } = this;
    const { start, end, first, max_tokens } = recognizer.about;
    const [layers, pair, count, heads, , size] = cross.dims;
    let past = recognizer.floats(new Float32Array(0), layers, pair, count, heads, 0, size), logits;
    while (tokens.length < steps * max_tokens) {
      const input = [recognizer.ids([tokens.at(-1) ?? start], 1, 1), cross, recognizer.ids([steps], 1), past];
      [logits, past] = await recognizer.run("step", ...input);
      const token = findLargest(logits.data.map((score, id) => (id < first && id !== end ? -Infinity : score)));
      if (token === end) break;
      tokens.push(token);
    }
  }
}

// Moonshine's decoder, whose graph ends the text itself. It has its own IDs, and its keys and values as single inputs.
class MoonshineSearch {
  constructor(recognizer) {
    this.recognizer = recognizer;
    this.tokens = [];
  }

  async push(cross) {
    const { recognizer, tokens } = this;
    const [, steps, layers, , heads, size] = cross.dims;
    const usesCache = new recognizer.runtime.Tensor("bool", [1], [1]); // which the graph does not read
    let states = Array.from({ length: 4 * layers }, () => recognizer.floats(new Float32Array(0), 1, heads, 0, size));
    while (tokens.length < steps + MOONSHINE_MIN_TOKENS) {
      const input = [recognizer.ids([tokens.at(-1) ?? MOONSHINE_START], 1, 1), cross, ...states, usesCache];
      const [logits, ...next] = await recognizer.run("decoder", ...input);
      const token = findLargest(logits.data);
      if (token === MOONSHINE_END) break;
      tokens.push(token);
      states = next;
    }
  }
}

export const SEARCHES = {
  ctc: CTCSearch, transducer: TransducerSearch, attention: AttentionSearch, moonshine: MoonshineSearch,
};
