// Sends the samples of the microphone to the page in pieces of 0.1 s.
class Microphone extends AudioWorkletProcessor {
  piece = new Float32Array(Math.round(sampleRate / 10));
  filled = 0;

  process([[samples]]) {
    for (const sample of samples ?? []) {
      this.piece[this.filled++] = sample;
      if (this.filled < this.piece.length) continue;
      this.port.postMessage(this.piece.slice());
      this.filled = 0;
    }
    return true;
  }
}

registerProcessor("microphone", Microphone);
