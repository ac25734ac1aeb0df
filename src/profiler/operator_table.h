// The operator table: which work takes how much time, in PyTorch's columns and in ours.
//
// Columns, units, widths and footers are those of torch.profiler's
// key_averages().table(with_flops=True), so that both can be laid side by side; after them stand
// GFLOP/s, GB/s, the percent of the roof, and the median and 99th percentile of a call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "profiler/peaks.h"
#include "profiler/profile.h"

namespace barestep {

/// What a row of the table sums up.
enum class RowsBy { kOp, kLayer, kPhase };

struct OperatorRow {
  std::string name;
  std::int64_t calls = 0;
  double host_s = 0;    // the host's time to queue it
  double device_s = 0;  // the device's to do it
  double least_s = 0;   // what the roof allows
  Cost cost;
  std::vector<double> call_s;  // of every call, sorted
};

/// In the order in which they first ran. A device that is the host's own processor has no time but
/// its own: there host_s is 0.
std::vector<OperatorRow> operator_rows(const Profile& profile, RowsBy by, const Peaks& peaks);

struct TableLayout {
  DeviceKind device = DeviceKind::kCpu;
  SortBy sort_by = SortBy::kDeviceTotal;
  std::int64_t row_limit = 100;
  bool footer = true;
};

/// Rows beyond the limit are left out and still count in percents and footers, as in PyTorch's.
/// Empty without rows.
std::string operator_table(std::vector<OperatorRow> rows, const TableLayout& layout);

/// The roofline model's view of a step: each row's flops and bytes, how many flops it does for each
/// byte, which of the two holds it back, and the share that it reaches of what the peaks then
/// allow. Rows without a price are left out. Empty where the peaks are not known.
std::string roofline_table(const std::vector<OperatorRow>& rows, const Peaks& peaks,
                           std::int64_t steps);

/// The first row whose calls together were faster than 1.1 times what the roof allows, and its
/// percentage of the roof: "gemm reaches 143.2 % of its roof". Empty for none. Twice
/// `cache_bytes` of each call are not counted for memory's roof: an op may find what it reads
/// in the cache, and leave there what it writes.
std::string contradiction(const std::vector<OperatorRow>& rows, const Peaks& peaks,
                          std::int64_t cache_bytes);

/// What the host did: making input, queueing, waiting, reporting. Its time runs beside the
/// device's, so it is in no footer.
std::string host_table(const Profile& profile);

/// "Backward takes 1.68 times as long as forward: 4.512 ms and 2.686 ms of a step." Empty where
/// either did not run.
std::string backward_ratio(const Profile& profile);

/// The step's flops a second beside the peaks, which are those of one of `devices`: model flops
/// utilisation (Chowdhery et al. 2022) against what was measured; and the least time its ops take
/// at the peaks, of the step's. Empty where a figure is missing.
std::string step_rate(const Profile& profile, const Peaks& peaks, int devices = 1);

}  // namespace barestep
