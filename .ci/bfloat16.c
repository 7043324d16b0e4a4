// f32 to bf16, to nearest even: LLVM's code calls it on a CPU without AVX512-BF16, and libgcc has it from version 13 on.
#include <stdint.h>
#include <string.h>

// Both 16-bit floats are returned in one register, and older compilers know only this one.
_Float16 __truncsfbf2(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint16_t half = value != value ? (bits >> 16) | 0x40 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  _Float16 result;
  memcpy(&result, &half, sizeof result);
  return result;
}
