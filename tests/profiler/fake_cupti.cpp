#include "profiler/fake_cupti.h"

#include <algorithm>

namespace {

barestep::FakeCupti state;
CUpti_BuffersCallbackRequestFunc request = nullptr;
CUpti_BuffersCallbackCompleteFunc complete = nullptr;

/// Room for the longest record.
constexpr std::size_t kSlot = 256;

CUptiResult status_of(const char* function) {
  const auto at = state.status.find(function);
  return at == state.status.end() ? CUPTI_SUCCESS : at->second;
}

struct Filled {
  std::uint8_t* memory;
  std::size_t size, valid;
};

}  // namespace

#define ANSWER(function) \
  if (const CUptiResult status = status_of(#function); status != CUPTI_SUCCESS) return status

extern "C" {

barestep::FakeCupti* fake_cupti_state() {
  return &state;
}

/// For tests that do not know CUPTI's types.
void fake_cupti_lets_only_administrators_record(int only) {
  state.status.clear();
  if (only != 0) state.status["cuptiActivityEnable"] = CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
}

CUptiResult cuptiGetVersion(uint32_t* version) {
  ANSWER(cuptiGetVersion);
  *version = state.version;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
  switch (result) {
    case CUPTI_ERROR_NOT_INITIALIZED:
      *text = "CUPTI_ERROR_NOT_INITIALIZED";
      break;
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
      *text = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES";
      break;
    case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
      *text = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED";
      break;
    case CUPTI_ERROR_UNKNOWN:
      *text = "CUPTI_ERROR_UNKNOWN";
      break;
    default:
      return CUPTI_ERROR_INVALID_PARAMETER;
  }
  return CUPTI_SUCCESS;
}

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc callback,
                           void* user) {
  ANSWER(cuptiSubscribe);
  if (state.is_subscribed) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  state.is_subscribed = true;
  state.on_event = callback;
  state.user = user;
  *subscriber = reinterpret_cast<CUpti_SubscriberHandle>(&state);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle) {
  state.is_subscribed = false;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiEnableCallback(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain,
                                CUpti_CallbackId) {
  ANSWER(cuptiEnableCallback);
  return CUPTI_SUCCESS;
}

// The two domains number their calls independently: 311 launches a graph in one of them and nothing
// in the other.
CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t id, const char** name) {
  ANSWER(cuptiGetCallbackName);
  if (domain == CUPTI_CB_DOMAIN_DRIVER_API) {
    switch (id) {
      case 211:
        *name = "cuProfilerStart";
        return CUPTI_SUCCESS;
      case 307:
        *name = "cuLaunchKernel";
        return CUPTI_SUCCESS;
      case 652:
        *name = "cuLaunchKernelEx";
        return CUPTI_SUCCESS;
      default:
        return CUPTI_ERROR_INVALID_PARAMETER;
    }
  }
  switch (id) {
    case 211:
      *name = "cudaLaunchKernel_v7000";
      return CUPTI_SUCCESS;
    case 311:
      *name = "cudaGraphLaunch_v10000";
      return CUPTI_SUCCESS;
    case 135:
      *name = "cudaEventRecord_v3020";
      return CUPTI_SUCCESS;
    default:
      return CUPTI_ERROR_INVALID_PARAMETER;
  }
}

CUptiResult cuptiGetGraphNodeId(CUgraphNode node, uint64_t* id) {
  ANSWER(cuptiGetGraphNodeId);
  *id = reinterpret_cast<std::uintptr_t>(node);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested,
                                           CUpti_BuffersCallbackCompleteFunc completed) {
  ANSWER(cuptiActivityRegisterCallbacks);
  request = requested;
  complete = completed;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc) {
  ++state.registered_clocks;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetTimestamp(uint64_t* timestamp) {
  ANSWER(cuptiGetTimestamp);
  *timestamp = state.now_ns();
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  ANSWER(cuptiActivityEnable);
  if (state.enabled.empty()) ++state.sessions;
  state.enabled[kind] = 1;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  state.enabled.erase(kind);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityFlushAll(uint32_t) {
  ANSWER(cuptiActivityFlushAll);
  std::vector<Filled> buffers;
  std::size_t in_buffer = 0;
  for (const auto& record : state.records) {
    if (buffers.empty() || in_buffer == state.records_of_a_buffer ||
        buffers.back().valid + kSlot > buffers.back().size) {
      Filled buffer{nullptr, 0, 0};
      std::size_t max = 0;
      request(&buffer.memory, &buffer.size, &max);
      if (buffer.memory == nullptr) {
        ++state.refused_buffers;
        ++state.dropped;
        continue;
      }
      buffers.push_back(buffer);
      in_buffer = 0;
    }
    Filled& buffer = buffers.back();
    std::copy(record.begin(), record.end(), buffer.memory + buffer.valid);
    buffer.valid += kSlot;
    ++in_buffer;
  }
  state.records.clear();
  if (state.delivers_backwards) std::reverse(buffers.begin(), buffers.end());
  for (const Filled& buffer : buffers) {
    complete(nullptr, 0, buffer.memory, buffer.size, buffer.valid);
  }
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, CUpti_Activity** record) {
  ANSWER(cuptiActivityGetNextRecord);
  auto* const at = reinterpret_cast<std::uint8_t*>(*record);
  std::uint8_t* const next = at == nullptr ? buffer : at + kSlot;
  if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
  ANSWER(cuptiActivityGetNumDroppedRecords);
  *dropped = state.dropped;
  state.dropped = 0;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind, uint64_t id) {
  ANSWER(cuptiActivityPushExternalCorrelationId);
  state.pushed.push_back(id);
  state.stack.push_back(id);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind, uint64_t* last) {
  ANSWER(cuptiActivityPopExternalCorrelationId);
  if (state.stack.empty()) return CUPTI_ERROR_QUEUE_EMPTY;
  *last = state.stack.back();
  state.stack.pop_back();
  return CUPTI_SUCCESS;
}

}  // extern "C"
