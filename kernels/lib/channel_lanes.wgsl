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

fn lanes_sum(s: Lanes, t: Lanes) -> Lanes { return Lanes(s.a + t.a, s.b + t.b, s.c + t.c, s.d + t.d); }

fn added(sum: Lanes, w: Words) -> Lanes {
  let v = raised(w);
  let byte = Words(24u);
  return Lanes(sum.a + (v.a >> byte), sum.b + (v.b >> byte), sum.c + (v.c >> byte), sum.d + (v.d >> byte));
}

// The same for sums of int16, of which a u32 has two.
struct LanesInt16 { a: Ints, b: Ints }

fn lanes_sum_int16(s: LanesInt16, t: LanesInt16) -> LanesInt16 { return LanesInt16(s.a + t.a, s.b + t.b); }

fn added_int16(sum: LanesInt16, w: Words) -> LanesInt16 {
  let half = Words(16u);
  return LanesInt16(sum.a + (bitcast<Ints>(w << half) >> half), sum.b + (bitcast<Ints>(w) >> half));
}
