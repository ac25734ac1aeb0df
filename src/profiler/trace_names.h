// What readers of traces tell kinds of work apart by.
#pragma once

#include <string>

#include "core/ops.h"
#include "core/program.h"
#include "profiler/profile.h"
#include "profiler/trace.h"

namespace barestep {

struct Named {
  const char* category;
  std::string name;
  const char* call;  // of the CUDA runtime, that would have queued it
};

Named named(const TimedOp& op);

/// Readers know communication by NCCL's names, whoever carries it out.
struct CollectiveNames {
  const char* kernel;
  const char* annotation;
  const char* collective;
};

CollectiveNames names_of(const Collective& collective);

/// The args of a collective, in the order in which Kineto has them.
std::string collective_args(const TimedOp& op, const Collective& collective,
                            const TraceContext& context);

/// Shapes and types of what a node reads and writes, as PyTorch writes them.
std::string dims_of(const Node& node);
std::string types_of(const Node& node);

}  // namespace barestep
