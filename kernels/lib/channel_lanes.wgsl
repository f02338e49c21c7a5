// Sums or extremes of each lane of Words: a has those of lane 0 of every word, d those of lane 3.
struct Lanes { a: Ints, b: Ints, c: Ints, d: Ints }

// Each lane moved to the highest byte. The lower bytes are not cleared: comparisons need only the highest.
fn raised(w: Words) -> Lanes {
  return Lanes(bitcast<Ints>(w << Words(24u)), bitcast<Ints>(w << Words(16u)), bitcast<Ints>(w << Words(8u)), bitcast<Ints>(w));
}

// The inverse of `raised`: words of the highest bytes.
fn lowered(v: Lanes) -> Words {
  return (bitcast<Words>(v.a) >> Words(24u)) | ((bitcast<Words>(v.b) >> Words(16u)) & Words(0xff00u)) |
         ((bitcast<Words>(v.c) >> Words(8u)) & Words(0xff0000u)) | (bitcast<Words>(v.d) & Words(0xff000000u));
}

fn added(sum: Lanes, w: Words) -> Lanes {
  let v = raised(w);
  let byte = Words(24u);
  return Lanes(sum.a + (v.a >> byte), sum.b + (v.b >> byte), sum.c + (v.c >> byte), sum.d + (v.d >> byte));
}
