"use strict";
// What a page carries packed (RFC 1950, 1951), at once: the browser's own DecompressionStream
// answers later, and printing does not wait.

const spread = (count, per) => Array.from({ length: count }, (_, i) => Math.max(0, Math.floor(i / per) - 1));
const sums = (extra, first) => extra.map((_, i) => extra.slice(0, i).reduce((sum, n) => sum + 2 ** n, first));
const LENGTH_BITS = [...spread(28, 4), 0], DISTANCE_BITS = spread(30, 2);
const LENGTHS = [...sums(spread(28, 4), 3), 258], DISTANCES = sums(DISTANCE_BITS, 1);
const BROKEN = "the packed charts are broken";
const ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/** By the next `bits` bits of the data: 16 · symbol + the length of its code. */
function codeTable(lengths) {
  const bits = Math.max(...lengths);
  const entries = new Uint16Array(1 << bits);
  let code = 0;
  for (let length = 1; length <= bits; length++, code <<= 1) {
    for (let symbol = 0; symbol < lengths.length; symbol++) {
      if (lengths[symbol] !== length) continue;
      let at = 0; // codes begin with their highest bit, data with the lowest
      for (let i = 0; i < length; i++) at |= ((code >> i) & 1) << (length - 1 - i);
      for (; at < entries.length; at += 1 << length) entries[at] = (symbol << 4) | length;
      code++;
    }
  }
  return { bits, entries };
}

function inflate(data) {
  let at = 2, held = 0, count = 0, size = 0; // `held`: the next `count` bits
  let out = new Uint8Array(4 * data.length);

  function need(bits) {
    for (; count < bits; count += 8) {
      if (at > data.length + 4) throw new Error(BROKEN); // it looks ahead by less
      held |= (data[at++] ?? 0) << count;
    }
  }
  function take(bits) {
    need(bits);
    const value = held & ((1 << bits) - 1);
    held >>>= bits;
    count -= bits;
    return value;
  }
  function symbol({ bits, entries }) {
    need(bits);
    const entry = entries[held & ((1 << bits) - 1)];
    held >>>= entry & 15;
    count -= entry & 15;
    return entry >> 4;
  }
  function room(more) {
    const larger = new Uint8Array(2 * (size + more));
    larger.set(out);
    out = larger;
  }
  function stored() {
    take(count % 8);
    const length = take(16);
    take(16); // its complement
    if (size + length > out.length) room(length);
    for (let i = 0; i < length; i++) out[size++] = take(8);
  }
  function tables() {
    const [literals, distances, codes] = [take(5) + 257, take(5) + 1, take(4) + 4];
    const lengths = new Array(19).fill(0);
    for (let i = 0; i < codes; i++) lengths[ORDER[i]] = take(3);
    const table = codeTable(lengths);
    const all = [];
    while (all.length < literals + distances) {
      const found = symbol(table);
      if (found < 16) all.push(found);
      else if (found === 16) all.push(...new Array(3 + take(2)).fill(all.at(-1)));
      else all.push(...new Array(found === 17 ? 3 + take(3) : 11 + take(7)).fill(0));
    }
    return [codeTable(all.slice(0, literals)), codeTable(all.slice(literals))];
  }
  function packed([literals, distances]) {
    for (let found; (found = symbol(literals)) !== 256;) {
      if (size + 258 > out.length) room(258);
      if (found < 256) {
        out[size++] = found;
        continue;
      }
      const length = LENGTHS[found - 257] + take(LENGTH_BITS[found - 257]);
      const code = symbol(distances);
      const from = size - DISTANCES[code] - take(DISTANCE_BITS[code]);
      for (let i = 0; i < length; i++) out[size++] = out[from + i];
    }
  }

  for (let last = 0; !last;) {
    last = take(1);
    const kind = take(2);
    if (kind === 3) throw new Error(BROKEN);
    if (kind === 0) stored();
    else if (kind === 2) packed(tables());
    else {
      const fixed = Array.from({ length: 288 }, (_, i) => (i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8));
      packed([codeTable(fixed), codeTable(new Array(30).fill(5))]);
    }
  }
  return out.subarray(0, size);
}
