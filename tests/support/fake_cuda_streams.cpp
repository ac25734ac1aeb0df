#include <cuda_runtime_api.h>

#include <algorithm>

#include "support/cuda_fake_state.h"

using namespace fake_cuda;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  FAKE_CALL();
  if (flags != cudaStreamNonBlocking) return failed(cudaErrorInvalidValue);
  *stream = new CUstream_st;
  ++state().objects;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* min, int* greatest) {
  FAKE_CALL();
  *min = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  FAKE_CALL();
  if (flags != cudaStreamNonBlocking) return failed(cudaErrorInvalidValue);
  *stream = new CUstream_st;
  (*stream)->priority = priority;
  ++state().objects;
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  *priority = stream->priority;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  --state().objects;
  delete stream;
  FAKE_CALL();
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
  FAKE_CALL();
  return forbidden_in_capture();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  FAKE_CALL();
  if (flags != cudaEventWaitDefault || event->external) return failed(cudaErrorInvalidValue);
  stream->ends_with_kernel = false;
  if (event->capture == nullptr) {
    // An event recorded outside the capture cannot be waited for inside it.
    if (capture_of(stream) == nullptr) return cudaSuccess;
    capture_of(stream)->invalid = true;
    return failed(cudaErrorStreamCaptureIsolation);
  }
  if (event->capture != state().capture) return failed(cudaErrorInvalidValue);
  if (capture_of(stream) == nullptr) {
    stream->capture = event->capture;
    stream->clock = {};
  }
  for (const auto& [known, count] : event->clock) {
    stream->clock[known] = std::max(stream->clock[known], count);
  }
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  FAKE_CALL();
  return submit(stream, {[=] { function(argument); }, true});
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  FAKE_CALL();
  *event = new CUevent_st;
  (*event)->times = (flags & cudaEventDisableTiming) == 0;
  ++state().objects;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  --state().objects;
  delete event;
  FAKE_CALL();
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  FAKE_CALL();
  if (flags == cudaEventRecordExternal) {
    if (capture_of(stream) == nullptr) return failed(cudaErrorIllegalState);
    event->external = true;
    ++state().event_nodes;
    return submit(stream, {[event] {
                    event->recorded = true;
                    event->at_s = now_s();
                  }});
  }
  event->external = false;
  event->capture = capture_of(stream);
  event->clock = stream->clock;
  event->recorded = event->capture == nullptr;  // an event recorded in a capture has no time
  event->at_s = now_s();
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  FAKE_CALL();
  if (event->capture != nullptr) return failed(cudaErrorCapturedEvent);
  return forbidden_in_capture();
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  FAKE_CALL();
  if (event->capture != nullptr) return failed(cudaErrorCapturedEvent);
  return forbidden_in_capture();
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  FAKE_CALL();
  if (!start->times || !end->times || !start->recorded || !end->recorded) {
    return failed(cudaErrorInvalidResourceHandle);
  }
  *milliseconds = static_cast<float>((end->at_s - start->at_s) * 1e3);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  FAKE_CALL();
  if (state().capture != nullptr) return failed(cudaErrorIllegalState);
  state().capture = std::make_shared<Capture>();
  stream->capture = state().capture;
  stream->clock.clear();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  FAKE_CALL();
  const std::shared_ptr<Capture> capture = std::move(state().capture);
  state().capture = nullptr;
  *graph = nullptr;
  if (capture == nullptr) return failed(cudaErrorIllegalState);
  if (capture->invalid) return failed(cudaErrorStreamCaptureInvalidated);
  int joined = 0;
  for (const auto& counted : stream->clock) joined += counted.second;
  if (joined < static_cast<int>(capture->nodes.size())) {
    return failed(cudaErrorStreamCaptureUnjoined);
  }
  *graph = new CUgraph_st{capture};
  ++state().objects;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags) {
  FAKE_CALL();
  if ((flags & ~static_cast<unsigned long long>(cudaGraphInstantiateFlagUseNodePriority)) != 0) {
    return failed(cudaErrorInvalidValue);
  }
  *exec = new CUgraphExec_st{graph->capture, flags != 0};
  ++state().objects;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  --state().objects;
  delete graph;
  FAKE_CALL();
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  --state().objects;
  delete exec;
  FAKE_CALL();
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  FAKE_CALL();
  for (const Work& work : exec->capture->nodes) {
    static_cast<void>(submit(stream, work));
    ++state().replayed;
    state().priorities_replayed.push_back(exec->uses_node_priorities ? work.priority
                                                                     : stream->priority);
  }
  return cudaSuccess;
}

}  // extern "C"
