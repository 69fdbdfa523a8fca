// Runs the model apart from the page, which stays responsive. Requests are answered one after the other.

import { loadRecognizer } from "./recognizer.js";

let recognizer, recording;
let queue = Promise.resolve();

async function answer({ request, samples, isLast }) {
  if (request === "push") return recording.push(samples, isLast);
  if (request === "begin") recording = recognizer.begin();
  if (request !== "load") return null;
  recognizer = await loadRecognizer((progress) => postMessage({ progress }));
  const { sample_rate, language, streaming } = recognizer.about;
  return { sampleRate: sample_rate, language, isLive: streaming !== null };
}

addEventListener("message", ({ data }) => {
  queue = queue.then(() => answer(data)).then((found) => postMessage({ found }), ({ message }) => postMessage({ error: message }));
});
