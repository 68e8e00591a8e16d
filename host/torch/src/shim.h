// What Molt needs of libtorch and `tch` lacks. Every function may throw; cxx turns that into a Rust error.
// Tensors cross as addresses of `at::Tensor`, which is what `tch` holds: given ones are borrowed, those that
// come back are new and belong to the caller.
#pragma once

#include "rust/cxx.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/custom_class.h>

namespace molt {

struct AdamW;

struct Store {
  c10::intrusive_ptr<c10d::Store> store;
  std::uint16_t port;
};

// What the graph of autograd holds of a group, too.
struct Ranks : torch::CustomClassHolder {
  Ranks(std::string group, c10::intrusive_ptr<c10d::Backend> own) : name(std::move(group)), backend(std::move(own)) {}

  std::string name;
  c10::intrusive_ptr<c10d::Backend> backend;
  // Held while a collective is started: c10d counts them without a lock, and a graph may be differentiated on any thread.
  std::mutex starting;
  // Bytes that this rank had to send, by kind of collective.
  std::array<std::atomic<std::uint64_t>, 5> sent{};
};

struct Group {
  c10::intrusive_ptr<Ranks> ranks;
};

struct Work {
  std::vector<c10::intrusive_ptr<c10d::Work>> all;
};

rust::Vec<std::size_t> vjp(rust::Slice<const std::size_t> outputs, rust::Slice<const std::size_t> inputs,
                           rust::Slice<const std::size_t> gradients);

void adamw(const AdamW& numbers, rust::Slice<const std::size_t> values, rust::Slice<const std::size_t> gradients,
           rust::Slice<const std::size_t> first, rust::Slice<const std::size_t> second);

// `spans` holds four numbers for each, see `Span`.
std::size_t attention(std::size_t query, std::size_t key, std::size_t value, rust::Slice<const std::int64_t> spans);

std::unique_ptr<Store> store(rust::Str host, std::uint16_t port, bool serve, std::uint64_t timeout_ms);
std::uint16_t store_port(const Store& store);
void store_set(const Store& store, rust::Str key, rust::Slice<const std::uint8_t> value);
void store_delete(const Store& store, rust::Str key);
void store_timeout(const Store& store, std::uint64_t timeout_ms);
rust::Vec<std::uint8_t> store_get(const Store& store, rust::Str key);

std::unique_ptr<Group> gloo(const Store& store, rust::Str name, rust::Str interface, rust::Str host,
                            std::int32_t rank, std::int32_t size, std::uint64_t timeout_ms);

std::unique_ptr<Work> all_gather(const Group& group, std::size_t output, std::size_t input);
// An all-gather, or a reduce-scatter whose sums are still to be made. `give[n]` is for rank `to[n]`.
std::unique_ptr<Work> messages(const Group& group, bool scatters, rust::Slice<const std::size_t> give,
                               rust::Slice<const std::int32_t> to, rust::Slice<const std::size_t> take,
                               rust::Slice<const std::int32_t> from);
std::unique_ptr<Work> all_reduce(const Group& group, std::size_t tensor, bool maximum);
std::unique_ptr<Work> broadcast(const Group& group, std::size_t tensor, std::int32_t root);
std::unique_ptr<Work> all_to_all(const Group& group, std::size_t output, std::size_t input,
                                 rust::Slice<const std::int64_t> output_counts,
                                 rust::Slice<const std::int64_t> input_counts);

std::array<std::uint64_t, 5> sent(const Group& group);

bool wait(const Work& work);

// Differentiable, and done when they return. The tensor that comes back is new.
std::size_t gathered(const Group& group, std::size_t input, std::int64_t dim);
std::size_t scattered(const Group& group, std::size_t input, std::int64_t dim);
std::size_t exchanged(const Group& group, std::size_t input, rust::Slice<const std::int64_t> give,
                      rust::Slice<const std::int64_t> take);

} // namespace molt
