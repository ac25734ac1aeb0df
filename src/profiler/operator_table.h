// The operator table: the time of each kind of work, in PyTorch's columns and in ours.
//
// Columns, units, widths and footers are those of torch.profiler's
// key_averages().table(with_flops=True), so that both can be compared side by side. They are
// followed by GFLOP/s, GB/s, the percentage of the roof, and the median and 99th percentile of a
// call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "profiler/peaks.h"
#include "profiler/profile.h"

namespace barestep {

/// What a row of the table combines.
enum class RowsBy { kOp, kBlock, kPhase };

struct OperatorRow {
  std::string name;
  std::int64_t calls = 0;
  double host_s = 0;    // to queue it, on the host
  double device_s = 0;  // to execute it, on the device
  double min_s = 0;     // the minimum that the roof allows
  Cost cost;
  std::vector<double> call_s;  // of every call, sorted
};

/// In the order in which they first ran. If the device is the host's own processor, there is no
/// separate host time, so host_s is 0.
std::vector<OperatorRow> operator_rows(const Profile& profile, RowsBy by, const Peaks& peaks);

struct TableLayout {
  DeviceKind device = DeviceKind::kCpu;
  SortBy sort_by = SortBy::kDeviceTotal;
  std::int64_t row_limit = 100;
  bool footer = true;
};

/// Rows beyond the limit are omitted but still count in percentages and footers, as in PyTorch.
/// Empty without rows.
std::string operator_table(std::vector<OperatorRow> rows, const TableLayout& layout);

/// A step in the roofline model: each row's flops and bytes, its flops per byte, which of the two
/// limits it, and the share that it reaches of what the peaks then allow. Rows without a price are
/// omitted. Empty if the peaks are unknown.
std::string roofline_table(const std::vector<OperatorRow>& rows, const Peaks& peaks,
                           std::int64_t steps);

/// The first row whose calls together were faster than 1.1 times what the roof allows, and its
/// percentage of the roof: "gemm reaches 143.2 % of its roof". Empty if there is none. For the roof
/// of memory, twice `cache_bytes` of each call are not counted: an op may find what it reads in the
/// cache, and leave there what it writes.
std::string contradiction(const std::vector<OperatorRow>& rows, const Peaks& peaks,
                          std::int64_t cache_bytes);

/// The host's work: making input, queueing, waiting, reporting. It runs alongside the device's, so
/// its time is in no footer.
std::string host_table(const Profile& profile);

/// "Backward takes 1.68 times as long as forward: 4.512 ms and 2.686 ms of a step." Empty if either
/// did not run.
std::string backward_ratio(const Profile& profile);

/// The step's flops per second relative to the peaks of `devices` devices, where `peaks` are those
/// of one: model flops utilization (Chowdhery et al. 2022) against measured peaks. Also the minimum
/// time of its ops at the peaks as a share of the step's. Empty if a figure is missing.
std::string step_rate(const Profile& profile, const Peaks& peaks, int devices = 1);

}  // namespace barestep
