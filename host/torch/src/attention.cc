#include "molt-torch/src/attention.h"

#include <limits>
#include <numeric>

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <torch/autograd.h>

namespace molt {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Where so many sequences are shorter than this on average, threads share the sequences, not the work of each.
constexpr std::int64_t kShort = 256;

// The part of a stream `[1, T, heads, head_dim]`, as the kernels have it: `[groups, kv_heads, count, head_dim]`. The
// heads that share a key lie in different places of the batch, where keys and values stand still.
at::Tensor of_queries(const at::Tensor& stream, std::int64_t start, std::int64_t count, std::int64_t kv_heads) {
  return stream.select(0, 0).narrow(0, start, count).unflatten(1, {kv_heads, -1}).permute({2, 1, 0, 3});
}

at::Tensor of_keys(const at::Tensor& stream, std::int64_t start, std::int64_t count, std::int64_t groups) {
  return stream.select(0, 0).narrow(0, start, count).transpose(0, 1).unsqueeze(0).expand({groups, -1, -1, -1});
}

// Of the keys that end where the queries end, each query sees those up to itself. Without earlier keys the kernels know
// that by themselves.
std::optional<at::Tensor> mask(const Span& span, const at::Tensor& query) {
  if (span.keys == span.queries) return std::nullopt;
  return at::full({span.queries, span.keys}, -std::numeric_limits<double>::infinity(), query.options())
      .triu_(span.keys - span.queries + 1);
}

// Runs `each` for every span, by number.
template <typename F>
void over(const std::vector<Span>& spans, F&& each) {
  auto count = static_cast<std::int64_t>(spans.size());
  auto lanes = static_cast<std::int64_t>(at::get_num_threads());
  auto tokens = std::accumulate(spans.begin(), spans.end(), std::int64_t{0},
                                [](std::int64_t sum, const Span& span) { return sum + span.queries; });
  if (count < 2 * lanes || tokens > count * kShort) {
    for (std::int64_t nth = 0; nth < count; ++nth) each(nth);
    return;
  }
  // Neighbours are about as long, so every lane has as much to do.
  at::parallel_for(0, lanes, 1, [&](std::int64_t begin, std::int64_t end) {
    at::AutoDispatchBelowADInplaceOrView guard;
    for (auto lane = begin; lane < end; ++lane)
      for (auto nth = lane; nth < count; nth += lanes) each(nth);
  });
}

struct Spans : torch::CustomClassHolder {
  explicit Spans(std::vector<Span> own) : all(std::move(own)) {}
  std::vector<Span> all;
};

struct Packed : Function<Packed> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const c10::intrusive_ptr<Spans>& spans) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto kv_heads = key.size(2), groups = query.size(2) / kv_heads;
    auto output = at::zeros_like(query, at::MemoryFormat::Contiguous);
    // The logarithms of the sums of exponentials, from which the backward pass makes the weights again.
    variable_list saved(4 + spans->all.size());
    over(spans->all, [&](std::int64_t nth) {
      const auto& span = spans->all[nth];
      auto bias = mask(span, query);
      auto [made, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
          of_queries(query, span.query, span.queries, kv_heads), of_keys(key, span.key, span.keys, groups),
          of_keys(value, span.key, span.keys, groups), 0.0, !bias.has_value(), bias);
      of_queries(output, span.query, span.queries, kv_heads).copy_(made);
      saved[4 + nth] = sums;
    });
    saved[0] = query, saved[1] = key, saved[2] = value, saved[3] = output;
    context->save_for_backward(std::move(saved));
    context->saved_data["spans"] = c10::IValue::make_capsule(spans);
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto saved = context->get_saved_variables();
    const auto &query = saved[0], &key = saved[1], &value = saved[2], &output = saved[3];
    auto capsule = context->saved_data["spans"].toCapsule();
    const auto& spans = static_cast<const Spans&>(*capsule).all;
    auto kv_heads = key.size(2), groups = query.size(2) / kv_heads;
    auto gradient = gradients[0].contiguous();
    auto zeros = [](const at::Tensor& like) { return at::zeros_like(like, at::MemoryFormat::Contiguous); };
    auto by_query = zeros(query), by_key = zeros(key), by_value = zeros(value);
    over(spans, [&](std::int64_t nth) {
      const auto& span = spans[nth];
      auto bias = mask(span, query);
      auto queries = [&](const at::Tensor& stream) {
        return of_queries(stream, span.query, span.queries, kv_heads);
      };
      auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          queries(gradient), queries(query), of_keys(key, span.key, span.keys, groups),
          of_keys(value, span.key, span.keys, groups), queries(output), saved[4 + nth], 0.0, !bias.has_value(), bias);
      queries(by_query).copy_(q);
      of_keys(by_key, span.key, span.keys, 1).copy_(groups > 1 ? k.sum(0, true) : k);
      of_keys(by_value, span.key, span.keys, 1).copy_(groups > 1 ? v.sum(0, true) : v);
    });
    return {by_query, by_key, by_value, Variable()};
  }
};

} // namespace

at::Tensor packed_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            std::vector<Span> spans) {
  return Packed::apply(query, key, value, c10::make_intrusive<Spans>(std::move(spans)));
}

} // namespace molt
