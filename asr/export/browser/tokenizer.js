// Tokens to text by a tokenizer.json, as in asr/text/tokenizer.py.

const UNKNOWN = 4; // the first tokens are <blank>, <pad>, <sos>, <eos> and <unk>
const UNKNOWN_MARK = "⁇";
const LINE_ENDS = /\r\n|[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]/;

export function makeTokenizer({ type, tokens, model }) {
  const join = Object.hasOwn(JOIN, type) && JOIN[type](model);
  if (!join) {
    const known = Object.keys(JOIN).join(", ");
    throw new Error(`This page does not know tokenizers of type ${type}; it knows ${known}.`);
  }
  return (ids) => join(ids.filter((id) => id >= UNKNOWN).map((id) => (id === UNKNOWN ? UNKNOWN_MARK : tokens[id])));
}

// Moonshine's tokens.txt has the bytes of each token in base64, and its ID.
export function makePieceJoiner(lines) {
  const pieces = new Map();
  for (const line of lines.split("\n").filter(Boolean)) {
    const [piece, id] = line.split(" ");
    pieces.set(Number(id), [...atob(piece)].map((letter) => letter.charCodeAt(0)));
  }
  const join = (ids) => new TextDecoder().decode(Uint8Array.from(ids.flatMap((id) => pieces.get(id) ?? [])));
  return (ids) => join(ids).replaceAll("\ufffd", "").split(/\s+/).filter(Boolean).join(" ");
}

const JOIN = {
  characters: () => (tokens) => tokens.join(""),
  words: () => (tokens) => tokens.join(" "),
  labels: () => (tokens) => tokens.join(" "),
  bpe: () => joinPieces,
  unigram: () => joinPieces,
  phones: makePhonesJoiner,
};

const joinPieces = (tokens) => tokens.join("").replaceAll("\u2581", " ").replace(/^ /, "");

// The model of a tokenizer of phones is its lexicon. Homophones have a mark at their end (#1, #2 ...).
function makePhonesJoiner(model) {
  const lexicon = new TextDecoder().decode(Uint8Array.from(atob(model), (letter) => letter.charCodeAt(0)));
  const spellings = new Map(), words = new Map(), counts = new Map();
  for (const line of lexicon.split(LINE_ENDS)) {
    const [word, ...phones] = line.replace(/^;;;.*|\s#.*/, "").split(/\s+/).filter(Boolean);
    const name = word?.replace(/\(\d+\)$/, "");
    if (word && !spellings.has(name)) {
      spellings.set(name, phones.map((phone) => phone.replace(/^([A-Z]{2})[0-2]$/, "$1")).join(" "));
    }
  }
  for (const [word, spelling] of spellings) {
    const count = counts.get(spelling) ?? 0;
    words.set(count ? `${spelling} #${count}` : spelling, word);
    counts.set(spelling, count + 1);
  }
  const name = (spelling) => words.get(spelling) ?? `/${spelling.replaceAll(" ", "-")}/`;
  return (tokens) => tokens.map((token) => (token === " " ? "\n" : token)).join(" ")
    .split("\n").map((spelling) => spelling.trim()).filter(Boolean)
    .map((spelling) => (spelling === UNKNOWN_MARK ? spelling : name(spelling))).join(" ");
}
