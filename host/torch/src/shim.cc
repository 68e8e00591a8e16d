#include "molt-torch/src/shim.h"
#include "molt-torch/src/attention.h"
#include "molt-torch/src/ffi.rs.h"

#include <cstdlib>
#include <numeric>
#include <stdexcept>

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Logging.h>
#include <torch/autograd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/version.h>

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 13,
              "the names of the collectives changed after libtorch 2.13: review this file");

C10_DECLARE_int(caffe2_log_level);

namespace molt {
namespace {

// c10d logs every attempt of a connection with the C++ stack. What fails in the end is an error of ours.
void quiet() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
}

at::Tensor& tensor(std::size_t address) { return *reinterpret_cast<at::Tensor*>(address); }

std::vector<at::Tensor> tensors(rust::Slice<const std::size_t> addresses) {
  std::vector<at::Tensor> all;
  all.reserve(addresses.size());
  for (auto address : addresses) all.push_back(tensor(address));
  return all;
}

// libtorch's errors carry the C++ stack, which tells a user nothing.
template <typename F>
auto plain(F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const c10::Error& error) {
    throw std::runtime_error(error.what_without_backtrace());
  }
}

using Started = c10::intrusive_ptr<c10d::Work>;

std::unique_ptr<Work> started(Started work) { return std::make_unique<Work>(Work{{std::move(work)}}); }

using Counts = std::vector<std::int64_t>;

enum Kind { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kAllToAll };

// Starts a collective, and counts what it needs to send, whatever algorithm carries it out.
template <typename F>
Started counted(Ranks& ranks, Kind kind, std::uint64_t bytes, F&& start) {
  std::lock_guard<std::mutex> lock(ranks.starting);
  auto work = start(*ranks.backend);
  ranks.sent[kind] += bytes;
  return work;
}

std::uint64_t others(const Ranks& ranks) { return ranks.backend->getSize() - 1; }

Started start_all_gather(Ranks& ranks, at::Tensor& output, at::Tensor& input) {
  return counted(ranks, kAllGather, input.nbytes() * others(ranks),
                 [&](c10d::Backend& backend) { return backend._allgather_base(output, input); });
}

// To or from one rank.
struct Message {
  at::Tensor tensor;
  std::int32_t rank;
};

// Starts messages of every rank to others, who each take them in the order in which they are given. Gloo's own
// reduce-scatter sends twice what is needed, and its all-gather takes parts of one size only.
std::vector<Started> start_messages(Ranks& ranks, Kind kind, std::vector<Message> give, std::vector<Message> take) {
  std::lock_guard<std::mutex> lock(ranks.starting);
  std::vector<Started> all;
  for (auto& [tensor, rank] : take) {
    std::vector<at::Tensor> one{tensor};
    all.push_back(ranks.backend->recv(one, rank, kind));
  }
  for (auto& [tensor, rank] : give) {
    std::vector<at::Tensor> one{tensor};
    all.push_back(ranks.backend->send(one, rank, kind));
    ranks.sent[kind] += tensor.nbytes();
  }
  return all;
}

Started start_all_to_all(Ranks& ranks, at::Tensor& output, at::Tensor& input, Counts take, Counts give) {
  std::uint64_t rows = 0;
  for (std::size_t rank = 0; rank < give.size(); ++rank)
    if (rank != static_cast<std::size_t>(ranks.backend->getRank())) rows += give[rank];
  auto row = input.size(0) == 0 ? 0 : input.nbytes() / input.size(0);
  return counted(ranks, kAllToAll, rows * row,
                 [&](c10d::Backend& backend) { return backend.alltoall_base(output, input, take, give); });
}

void finish(const Started& work) {
  if (!work->wait()) throw std::runtime_error("it was aborted");
}

// The parts of all ranks, one after the other on dimension `dim`.
at::Tensor gather(Ranks& ranks, const at::Tensor& part, std::int64_t dim) {
  auto input = part.contiguous();
  auto shape = input.sizes().vec();
  shape[0] *= ranks.backend->getSize();
  auto output = at::empty(shape, input.options());
  finish(start_all_gather(ranks, output, input));
  if (dim == 0) return output;
  return output.unflatten(0, {ranks.backend->getSize(), input.size(0)}).movedim(0, dim).flatten(dim, dim + 1);
}

// The sum over the ranks, of which each gets its part of dimension `dim`. That of bfloat16 is made in float32.
at::Tensor scatter(Ranks& ranks, const at::Tensor& whole, std::int64_t dim) {
  auto size = ranks.backend->getSize();
  auto kind = whole.scalar_type() == at::kBFloat16 ? at::kFloat : whole.scalar_type();
  auto parts = whole.unflatten(dim, {size, whole.size(dim) / size}).movedim(dim, 0).to(kind).contiguous();
  auto own = ranks.backend->getRank();
  auto addends = at::empty_like(parts);
  addends[own].copy_(parts[own]);
  std::vector<Message> give, take;
  for (std::int32_t rank = 0; rank < size && parts.numel() > 0; ++rank) {
    if (rank == own) continue;
    give.push_back({parts[rank], rank});
    take.push_back({addends[rank], rank});
  }
  for (const auto& work : start_messages(ranks, kReduceScatter, std::move(give), std::move(take))) finish(work);
  return addends.sum(0).to(whole.scalar_type());
}

at::Tensor exchange(Ranks& ranks, const at::Tensor& rows, const Counts& give, const Counts& take) {
  auto input = rows.contiguous();
  auto shape = input.sizes().vec();
  shape[0] = std::accumulate(take.begin(), take.end(), std::int64_t{0});
  auto output = at::empty(shape, input.options());
  finish(start_all_to_all(ranks, output, input, take, give));
  return output;
}

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

void remember(AutogradContext* context, const c10::intrusive_ptr<Ranks>& ranks) {
  context->saved_data["ranks"] = c10::IValue::make_capsule(ranks);
}

// Runs the collective of a backward pass, whose errors nobody else can name.
template <typename F>
at::Tensor backwards(AutogradContext* context, const char* collective, F&& f) {
  auto capsule = context->saved_data["ranks"].toCapsule();
  auto& ranks = static_cast<Ranks&>(*capsule);
  try {
    return f(ranks);
  } catch (const std::exception& error) {
    auto* known = dynamic_cast<const c10::Error*>(&error);
    throw std::runtime_error(std::string(collective) + " of group `" + ranks.name + "` failed on rank " +
                             std::to_string(ranks.backend->getRank()) + " of " +
                             std::to_string(ranks.backend->getSize()) + ": " +
                             (known != nullptr ? known->what_without_backtrace() : error.what()));
  }
}

struct Gather : Function<Gather> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& part, const c10::intrusive_ptr<Ranks>& ranks,
                            std::int64_t dim) {
    remember(context, ranks);
    context->saved_data["dim"] = dim;
    return gather(*ranks, part, dim);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto dim = context->saved_data["dim"].toInt();
    auto by_part = backwards(context, "the reduce-scatter of a gradient",
                             [&](Ranks& ranks) { return scatter(ranks, gradients[0], dim); });
    return {by_part, Variable(), Variable()};
  }
};

struct Scatter : Function<Scatter> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& whole,
                            const c10::intrusive_ptr<Ranks>& ranks, std::int64_t dim) {
    remember(context, ranks);
    context->saved_data["dim"] = dim;
    return scatter(*ranks, whole, dim);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto dim = context->saved_data["dim"].toInt();
    auto by_whole = backwards(context, "the all-gather of a gradient",
                              [&](Ranks& ranks) { return gather(ranks, gradients[0], dim); });
    return {by_whole, Variable(), Variable()};
  }
};

struct Exchange : Function<Exchange> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const c10::intrusive_ptr<Ranks>& ranks,
                            const Counts& give, const Counts& take) {
    remember(context, ranks);
    context->saved_data["give"] = give;
    context->saved_data["take"] = take;
    return exchange(*ranks, rows, give, take);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto give = context->saved_data["give"].toIntVector();
    auto take = context->saved_data["take"].toIntVector();
    auto by_rows = backwards(context, "the all-to-all of a gradient",
                             [&](Ranks& ranks) { return exchange(ranks, gradients[0], take, give); });
    return {by_rows, Variable(), Variable(), Variable()};
  }
};

std::size_t given(at::Tensor made) { return reinterpret_cast<std::size_t>(new at::Tensor(std::move(made))); }

Counts counts(rust::Slice<const std::int64_t> all) { return Counts(all.begin(), all.end()); }

} // namespace

rust::Vec<std::size_t> vjp(rust::Slice<const std::size_t> outputs, rust::Slice<const std::size_t> inputs,
                           rust::Slice<const std::size_t> gradients) {
  return plain([&] {
    auto found = torch::autograd::grad(tensors(outputs), tensors(inputs), tensors(gradients),
                                       /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
    rust::Vec<std::size_t> all;
    for (auto& gradient : found)
      all.push_back(gradient.defined() ? given(std::move(gradient)) : 0);
    return all;
  });
}

void adamw(const AdamW& numbers, rust::Slice<const std::size_t> values, rust::Slice<const std::size_t> gradients,
           rust::Slice<const std::size_t> first, rust::Slice<const std::size_t> second) {
  if (values.empty()) return;
  plain([&] {
    auto options = tensor(values[0]).options().dtype(at::kFloat);
    std::vector<at::Tensor> steps(values.size(), at::scalar_tensor(numbers.step, options));
    std::optional<at::Tensor> divisor;
    if (numbers.divisor != 1.0) divisor = at::scalar_tensor(numbers.divisor, options);
    at::_fused_adamw_(tensors(values), tensors(gradients), tensors(first), tensors(second), {}, steps, numbers.lr,
                      numbers.beta1, numbers.beta2, numbers.weight_decay, numbers.eps, /*amsgrad=*/false,
                      /*maximize=*/false, divisor);
  });
}

std::size_t attention(std::size_t query, std::size_t key, std::size_t value, rust::Slice<const std::int64_t> spans) {
  return plain([&] {
    std::vector<Span> all;
    for (std::size_t at = 0; at + 3 < spans.size(); at += 4)
      all.push_back({spans[at], spans[at + 1], spans[at + 2], spans[at + 3]});
    return given(packed_attention(tensor(query), tensor(key), tensor(value), std::move(all)));
  });
}

std::unique_ptr<Store> store(rust::Str host, std::uint16_t port, bool serve, std::uint64_t timeout_ms) {
  quiet();
  return plain([&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = serve;
    options.waitWorkers = false;
    options.timeout = std::chrono::milliseconds(timeout_ms);
    auto made = c10::make_intrusive<c10d::TCPStore>(std::string(host), options);
    auto bound = made->getPort();
    return std::make_unique<Store>(Store{std::move(made), bound});
  });
}

std::uint16_t store_port(const Store& store) { return store.port; }

void store_set(const Store& store, rust::Str key, rust::Slice<const std::uint8_t> value) {
  plain([&] { store.store->set(std::string(key), std::vector<std::uint8_t>(value.begin(), value.end())); });
}

void store_delete(const Store& store, rust::Str key) {
  plain([&] { store.store->deleteKey(std::string(key)); });
}

void store_timeout(const Store& store, std::uint64_t timeout_ms) {
  store.store->setTimeout(std::chrono::milliseconds(timeout_ms));
}

rust::Vec<std::uint8_t> store_get(const Store& store, rust::Str key) {
  return plain([&] {
    rust::Vec<std::uint8_t> value;
    for (auto byte : store.store->get(std::string(key))) value.push_back(byte);
    return value;
  });
}

std::unique_ptr<Group> gloo(const Store& store, rust::Str name, rust::Str interface, rust::Str host,
                            std::int32_t rank, std::int32_t size, std::uint64_t timeout_ms) {
  return plain([&] {
    using c10d::ProcessGroupGloo;
    auto options = ProcessGroupGloo::Options::create(std::chrono::milliseconds(timeout_ms));
    if (!interface.empty())
      options->devices.push_back(ProcessGroupGloo::createDeviceForInterface(std::string(interface)));
    else if (!host.empty())
      options->devices.push_back(ProcessGroupGloo::createDeviceForHostname(std::string(host)));
    else
      options->devices.push_back(ProcessGroupGloo::createDefaultDevice());
    auto own = c10::make_intrusive<c10d::PrefixStore>(std::string(name), store.store);
    auto backend = c10::make_intrusive<ProcessGroupGloo>(own, rank, size, options);
    return std::make_unique<Group>(Group{c10::make_intrusive<Ranks>(std::string(name), std::move(backend))});
  });
}

std::unique_ptr<Work> all_gather(const Group& group, std::size_t output, std::size_t input) {
  return plain([&] { return started(start_all_gather(*group.ranks, tensor(output), tensor(input))); });
}

std::unique_ptr<Work> messages(const Group& group, bool scatters, rust::Slice<const std::size_t> give,
                               rust::Slice<const std::int32_t> to, rust::Slice<const std::size_t> take,
                               rust::Slice<const std::int32_t> from) {
  auto paired = [](rust::Slice<const std::size_t> addresses, rust::Slice<const std::int32_t> ranks) {
    std::vector<Message> all;
    for (std::size_t nth = 0; nth < addresses.size(); ++nth) all.push_back({tensor(addresses[nth]), ranks[nth]});
    return all;
  };
  return plain([&] {
    auto kind = scatters ? kReduceScatter : kAllGather;
    return std::make_unique<Work>(Work{start_messages(*group.ranks, kind, paired(give, to), paired(take, from))});
  });
}

std::unique_ptr<Work> all_reduce(const Group& group, std::size_t address, bool maximum) {
  return plain([&] {
    auto& ranks = *group.ranks;
    std::vector<at::Tensor> one{tensor(address)};
    c10d::AllreduceOptions options;
    options.reduceOp = maximum ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
    auto bytes = 2 * one[0].nbytes() * others(ranks) / ranks.backend->getSize();
    return started(counted(ranks, kAllReduce, bytes,
                           [&](c10d::Backend& backend) { return backend.allreduce(one, options); }));
  });
}

std::unique_ptr<Work> broadcast(const Group& group, std::size_t address, std::int32_t root) {
  return plain([&] {
    auto& ranks = *group.ranks;
    std::vector<at::Tensor> one{tensor(address)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    auto bytes = ranks.backend->getRank() == root ? one[0].nbytes() * others(ranks) : 0;
    return started(counted(ranks, kBroadcast, bytes,
                           [&](c10d::Backend& backend) { return backend.broadcast(one, options); }));
  });
}

std::unique_ptr<Work> all_to_all(const Group& group, std::size_t output, std::size_t input,
                                 rust::Slice<const std::int64_t> output_counts,
                                 rust::Slice<const std::int64_t> input_counts) {
  return plain([&] {
    return started(start_all_to_all(*group.ranks, tensor(output), tensor(input), counts(output_counts),
                                    counts(input_counts)));
  });
}

std::array<std::uint64_t, 5> sent(const Group& group) {
  std::array<std::uint64_t, 5> all;
  for (std::size_t kind = 0; kind < all.size(); ++kind) all[kind] = group.ranks->sent[kind];
  return all;
}

std::size_t gathered(const Group& group, std::size_t input, std::int64_t dim) {
  return plain([&] { return given(Gather::apply(tensor(input), group.ranks, dim)); });
}

std::size_t scattered(const Group& group, std::size_t input, std::int64_t dim) {
  return plain([&] { return given(Scatter::apply(tensor(input), group.ranks, dim)); });
}

std::size_t exchanged(const Group& group, std::size_t input, rust::Slice<const std::int64_t> give,
                      rust::Slice<const std::int64_t> take) {
  return plain([&] { return given(Exchange::apply(tensor(input), group.ranks, counts(give), counts(take))); });
}

bool wait(const Work& work) {
  return plain([&] {
    auto done = true;
    for (const auto& one : work.all) done = one->wait() && done;
    return done;
  });
}

} // namespace molt
