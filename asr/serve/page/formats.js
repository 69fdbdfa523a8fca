// Segments as the files that people download.
const MAX_CUE_CHARACTERS = 80, MAX_CUE_SECONDS = 6;

// A few words at a time; a segment without words is one cue.
function* cues(segments) {
  for (const { start, end, text, words, speaker } of segments) {
    let cue = null;
    for (const word of words) {
      const isFull = cue && (cue.text.length + word.word.length >= MAX_CUE_CHARACTERS || word.end - cue.start > MAX_CUE_SECONDS);
      if (isFull) yield { ...cue, speaker };
      if (!cue || isFull) cue = { start: word.start, end: word.end, text: word.word };
      else cue = { start: cue.start, end: word.end, text: cue.text + between(text, cue.text) + word.word };
    }
    yield { ...(cue ?? { start, end, text }), speaker };
  }
}

// Languages without spaces have none here either.
const between = (text, before) => (text.includes(`${before} `) ? " " : "");

function clock(seconds, mark) {
  const milliseconds = Math.round(1000 * seconds);
  const part = (value, length) => String(Math.floor(value)).padStart(length, "0");
  const [hours, minutes] = [milliseconds / 3600000, (milliseconds / 60000) % 60];
  return `${part(hours, 2)}:${part(minutes, 2)}:${part((milliseconds / 1000) % 60, 2)}${mark}${part(milliseconds % 1000, 3)}`;
}

const times = ({ start, end }, mark) => `${clock(start, mark)} --> ${clock(end, mark)}`;
const escape = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

const named = ({ speaker, text }) => (speaker ? `${speaker}: ${text}` : text);
const voice = ({ speaker }) => (speaker ? `<v ${escape(speaker)}>` : "");

export const formats = {
  txt: (segments) => segments.map((segment) => `${named(segment)}\n`).join(""),
  srt: (segments) => [...cues(segments)].map(
    (cue, i) => `${i + 1}\n${times(cue, ",")}\n${named(cue).replaceAll("-->", "→")}\n\n`).join(""),
  vtt: (segments) => "WEBVTT\n\n" + [...cues(segments)].map((cue) => `${times(cue, ".")}\n${voice(cue)}${escape(cue.text)}\n\n`).join(""),
  json: (segments) => JSON.stringify({
    segments: segments.map(({ start, end, speaker, text, words }) => ({ start, end, speaker, text, words })),
  }, null, 2) + "\n",
};
