#include "molt-torch/src/shim.h"
#include "molt-torch/src/ffi.rs.h"

#include <cstdlib>
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

std::unique_ptr<Work> started(c10::intrusive_ptr<c10d::Work> work) {
  return std::make_unique<Work>(Work{std::move(work)});
}

} // namespace

rust::Vec<std::size_t> vjp(rust::Slice<const std::size_t> outputs, rust::Slice<const std::size_t> inputs,
                           rust::Slice<const std::size_t> gradients) {
  return plain([&] {
    auto found = torch::autograd::grad(tensors(outputs), tensors(inputs), tensors(gradients),
                                       /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
    rust::Vec<std::size_t> all;
    for (auto& gradient : found)
      all.push_back(gradient.defined() ? reinterpret_cast<std::size_t>(new at::Tensor(std::move(gradient))) : 0);
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
    return std::make_unique<Group>(Group{c10::make_intrusive<ProcessGroupGloo>(own, rank, size, options)});
  });
}

std::unique_ptr<Work> all_gather(const Group& group, std::size_t output, std::size_t input) {
  return plain([&] { return started(group.backend->_allgather_base(tensor(output), tensor(input))); });
}

std::unique_ptr<Work> reduce_scatter(const Group& group, std::size_t output, std::size_t input) {
  return plain([&] { return started(group.backend->_reduce_scatter_base(tensor(output), tensor(input))); });
}

std::unique_ptr<Work> all_reduce(const Group& group, std::size_t address, bool maximum) {
  return plain([&] {
    std::vector<at::Tensor> one{tensor(address)};
    c10d::AllreduceOptions options;
    options.reduceOp = maximum ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
    return started(group.backend->allreduce(one, options));
  });
}

std::unique_ptr<Work> broadcast(const Group& group, std::size_t address, std::int32_t root) {
  return plain([&] {
    std::vector<at::Tensor> one{tensor(address)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return started(group.backend->broadcast(one, options));
  });
}

std::unique_ptr<Work> all_to_all(const Group& group, std::size_t output, std::size_t input,
                                 rust::Slice<const std::int64_t> output_counts,
                                 rust::Slice<const std::int64_t> input_counts) {
  return plain([&] {
    std::vector<std::int64_t> to(output_counts.begin(), output_counts.end());
    std::vector<std::int64_t> from(input_counts.begin(), input_counts.end());
    return started(group.backend->alltoall_base(tensor(output), tensor(input), to, from));
  });
}

bool wait(const Work& work) {
  return plain([&] { return work.work->wait(); });
}

} // namespace molt
