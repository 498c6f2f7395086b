// Conversions of 16-bit floats that compilers call and their own libraries may lack.
typedef unsigned int u32;
typedef unsigned short u16;

static u32 bits_of(float f) { return __builtin_bit_cast(u32, f); }

#define HIDDEN extern "C" __attribute__((visibility("hidden")))

#ifndef __F16C__
HIDDEN float __extendhfsf2(_Float16 h) {
  u16 b = __builtin_bit_cast(u16, h);
  u32 sign = u32(b & 0x8000) << 16, exponent = b >> 10 & 31, fraction = b & 0x3ff;
  if (exponent == 31) return __builtin_bit_cast(float, sign | 0x7f800000 | fraction << 13);
  if (exponent) return __builtin_bit_cast(float, sign | (exponent + 112) << 23 | fraction << 13);
  float small = float(fraction) * 0x1p-24f;
  return __builtin_bit_cast(float, bits_of(small) | sign);
}

HIDDEN _Float16 __truncsfhf2(float f) {
  u32 b = bits_of(f), sign = b >> 16 & 0x8000, rest = b & 0x7fffffff;
  u32 out;
  if (rest > 0x7f800000) out = 0x7e00 | (rest >> 13 & 0x3ff);
  else if (rest >= 0x477ff000) out = 0x7c00;
  else if (rest >= 0x38800000) out = (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13;
  else {
    // the sum puts the units of the smallest half at the end of the fraction, rounded to even
    float shifted = __builtin_bit_cast(float, rest) + 0.5f;
    out = bits_of(shifted) - 0x3f000000;
  }
  return __builtin_bit_cast(_Float16, u16(out | sign));
}
#endif

HIDDEN __bf16 __truncsfbf2(float f) {
  u32 b = bits_of(f);
  u16 out = (b & 0x7fffffff) > 0x7f800000 ? u16(b >> 16 | 0x40) : u16((b + 0x7fff + (b >> 16 & 1)) >> 16);
  return __builtin_bit_cast(__bf16, out);
}
