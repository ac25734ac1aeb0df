#include "measure_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "core/output_file.h"
#include "kernels/cuda_device.h"
#include "kernels/make_device.h"
#include "lab/measured_card.h"
#include "parallel/gpu_places.h"
#include "parallel/mpi_communicator.h"
#include "parallel/nccl_communicator.h"
#include "parallel/staged_communicator.h"
#include "parallel/thread_communicator.h"
#include "session/outputs.h"

namespace barestep {
namespace {

/// As mlp_ddp joins its ranks: NCCL where each has a GPU of its own, MPI elsewhere.
void measure_this_rank(const RankRatesOptions& options) {
  if (options.alone) {
    ThreadGroup group(1);
    const auto self = group.join(0);
    const auto device = make_device({.device = options.device, .threads = options.threads});
    write_rank_rates(*self, *self, *device, options.quick, options.output);
    return;
  }
  const MpiRank place = join_mpi();
  Communicator& ranks = *place.communicator;
  if (options.device == "cpu") {
    const auto device = make_device({.device = "cpu", .threads = options.threads});
    write_rank_rates(ranks, ranks, *device, options.quick, options.output);
    return;
  }
  const int gpus = std::max(1, cuda_device_count());
  const auto device = make_device({.device = fmt::format("cuda:{}", place.local_rank % gpus)});
  std::unique_ptr<Communicator> transport;
  const auto places = gather_gpu_places(ranks, device->info().pci_bus_id);
  if (has_nccl() && why_nccl_cannot_join(places).empty()) {
    transport = join_nccl(ranks, *device);
  } else {
    transport = std::make_unique<StagedCommunicator>(ranks, *device);
  }
  write_rank_rates(ranks, *transport, *device, options.quick, options.output);
}

}  // namespace

void add_measure_rank(CLI::App& app, RankRatesOptions& options) {
  CLI::App* measure = app.add_subcommand("measure-rank", "")->group("");
  measure->add_option("--output", options.output)->required();
  measure->add_option("--device", options.device);
  measure->add_option("--threads", options.threads);
  measure->add_flag("--quick", options.quick);
  measure->add_flag("--alone", options.alone);
  measure->callback([&] { measure_this_rank(options); });
}

void require_card_output(const std::filesystem::path& output,
                         const std::filesystem::path& programs) {
  if (output.empty()) return;
  require_writable(output);
  std::vector<FileUse> inputs;
  for (const char* name : {"mlp_lab", "mlp_single", "mlp_ddp"}) {
    inputs.push_back({"mlp_lab card", programs / name});
  }
  require_separate_files({{"--output", output}}, inputs);
}

}  // namespace barestep
