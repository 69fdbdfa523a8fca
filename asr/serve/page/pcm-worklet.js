// Converts the samples of the microphone to 16-bit pieces of 0.1 s, and reports the peak of each.
class PcmWriter extends AudioWorkletProcessor {
  constructor() {
    super();
    this.piece = new Int16Array(Math.round(sampleRate / 10));
    this.filled = 0;
    this.peak = 0;
  }

  process([channels]) {
    const samples = channels?.[0];
    for (let i = 0; samples && i < samples.length; i++) {
      const value = Math.max(-1, Math.min(1, samples[i]));
      this.peak = Math.max(this.peak, Math.abs(value));
      this.piece[this.filled++] = value * 32767;
      if (this.filled === this.piece.length) {
        this.port.postMessage({ piece: this.piece.slice(), peak: this.peak });
        this.filled = this.peak = 0;
      }
    }
    return true;
  }
}

registerProcessor("pcm-writer", PcmWriter);
