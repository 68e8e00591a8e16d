#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace molt {

// A sequence of a stream: its last `queries` tokens attend, among `keys` tokens that end where they end.
struct Span {
  std::int64_t query, queries, key, keys;
};

// Queries `[1, T, heads, head_dim]`, keys and values `[1, S, kv_heads, head_dim]`. What is in no span attends to nothing
// and is zero. Differentiable.
at::Tensor packed_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            std::vector<Span> spans);

} // namespace molt
