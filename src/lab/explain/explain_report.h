// What the traces of a run say, in words, tables and a picture; and mlp_lab explain.
#pragma once

#include "lab/explain/trace_account.h"
#include "lab/report/findings.h"

namespace barestep {

/// The verdict first, then what to change, then what the traces do not tell. Tables: the mean step
/// of every rank, its operators, who waited for whom, the collectives, and every step. The plot has
/// one step of all ranks on one axis.
Findings findings_of(const TracedRun& run, const RunAccount& account);

}  // namespace barestep
