// A decoder that keeps its cache from token to token: what a text's tokens are, and which one follows. As demo/text.py
// and examples/generate.py have it; greedy text is the same.

const CHARACTERS = 128;
const PIECES = /\n *| ?[A-Za-z_]+| ?[0-9]| ?[^\sA-Za-z0-9_]+|\s/g;

/** Byte-pair encoding of ASCII text: token CHARACTERS + i stands for the pair `merges[i]`. */
export class Tokenizer {
  #ranks;

  constructor(merges) {
    this.strings = Array.from({ length: CHARACTERS }, (_, code) => String.fromCharCode(code));
    for (const [first, second] of merges) this.strings.push(this.strings[first] + this.strings[second]);
    this.#ranks = new Map(merges.map((pair, rank) => [String(pair), CHARACTERS + rank]));
  }

  /** Token numbers of a text; characters beyond ASCII count as question marks. */
  encode(text) {
    const pieces = text.replace(/[^\x00-\x7f]/gu, "?").match(PIECES) ?? [];
    return pieces.flatMap((piece) => this.#piece(Array.from(piece, (letter) => letter.charCodeAt(0))));
  }

  /** The pair that became a token first is joined first. */
  #piece(tokens) {
    for (;;) {
      const joined = tokens.slice(1).map((second, i) => this.#ranks.get(`${tokens[i]},${second}`) ?? Infinity);
      const token = Math.min(...joined);
      if (token === Infinity) return tokens;
      const found = [];
      for (let i = 0; i < tokens.length; i++) {
        found.push(joined[i] === token ? token : tokens[i]);
        if (joined[i] === token) i++;
      }
      tokens = found;
    }
  }
}

/** Writes by a network that takes a token and its place, of which it keeps `context`. */
export class Writer {
  #net;
  #context;
  #known = [];

  constructor(net, context) {
    this.#net = net;
    this.#context = context;
  }

  /** Begins anew with a text, of which the last tokens count; the scores of the next one. */
  async read(tokens) {
    this.#known = [];
    this.#net.reset();
    let scores;
    for (const token of tokens.slice(1 - this.#context)) scores = await this.next(token);
    return scores;
  }

  /** Adds a token; the scores of the one after it. A full cache is begun anew with its second half. */
  async next(token) {
    const place = this.#known.length;
    if (place === this.#context) return this.read([...this.#known.slice(place / 2), token]);
    const scores = await this.#net.run({ tokens: Int32Array.of(token), positions: Int32Array.of(place) });
    this.#known.push(token);
    return scores;
  }

  /** The tokens that follow a text, without end: the likeliest ones, or drawn at a temperature above 0. */
  async *write(tokens, temperature = 0, seed = 0) {
    const random = uniform(seed);
    let scores = await this.read(tokens);
    for (;;) {
      const token = chosen(scores, temperature, random);
      yield token;
      scores = await this.next(token);
    }
  }
}

/** The token of the highest score, the first of equals, or one drawn by softmax(scores / temperature). */
export function chosen(scores, temperature, random) {
  const most = scores.reduce((a, b) => Math.max(a, b));
  if (temperature <= 0) return scores.indexOf(most);
  const powers = Float64Array.from(scores, (score) => Math.exp((score - most) / temperature));
  let left = random() * powers.reduce((a, b) => a + b);
  return Math.max(powers.findIndex((power) => (left -= power) < 0), 0);
}

/** Numbers in [0, 1) that a seed decides (Steele and Vigna's SplitMix, 32 bits of it). */
export function uniform(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x9e3779b9) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 16), 0x21f0aaad);
    mixed = Math.imul(mixed ^ (mixed >>> 15), 0x735a2d97);
    return ((mixed ^ (mixed >>> 15)) >>> 0) / 2 ** 32;
  };
}
