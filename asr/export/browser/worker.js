// Runs the model apart from the page, which stays responsive. Requests are answered one after the other.

import { loadRecognizer } from "./recognizer.js";

let recognizer, recording;

const ANSWERS = {
  async load({ folder }) {
    recognizer = await loadRecognizer(folder, (share, bytes) => postMessage({ share, bytes }));
    const { kind, sample_rate, language, streaming } = recognizer.about;
    return { kind, language, sampleRate: sample_rate, isStreaming: streaming !== null };
  },
  async begin() {
    recording = recognizer.begin();
  },
  async push({ samples, isLast }) {
    return recording.push(samples, isLast);
  },
};

let queue = Promise.resolve();

addEventListener("message", ({ data }) => {
  queue = queue
    .then(() => ANSWERS[data.request](data))
    .then((answer) => postMessage({ id: data.id, answer }), (error) => postMessage({ id: data.id, error: error.message }));
});
