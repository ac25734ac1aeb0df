// CUPTI's functions, found in its library at run time, so that programs start without it.
#pragma once

#include <cupti.h>

#include <memory>
#include <string>
#include <vector>

namespace barestep {

template <class Function>
struct CuptiCall {
  const char* name;
  Function* function = nullptr;
};

/// Never unloaded, since CUPTI has its own threads.
class CuptiLibrary {
 public:
  /// Loads the first of the files that can be loaded and has every function. Null if there is none,
  /// with the reason in `why`.
  static std::unique_ptr<const CuptiLibrary> load(const std::vector<std::string>& files,
                                                  std::string& why);

  /// "cuptiSubscribe failed: CUPTI_ERROR_... (39), another profiler is attached".
  [[nodiscard]] std::string failure(const char* call, CUptiResult status) const;

  /// "13.0.1".
  [[nodiscard]] const std::string& version() const { return version_; }

  CuptiCall<decltype(cuptiSubscribe)> subscribe{"cuptiSubscribe"};
  CuptiCall<decltype(cuptiUnsubscribe)> unsubscribe{"cuptiUnsubscribe"};
  CuptiCall<decltype(cuptiEnableCallback)> enable_callback{"cuptiEnableCallback"};
  CuptiCall<decltype(cuptiGetCallbackName)> callback_name{"cuptiGetCallbackName"};
  CuptiCall<decltype(cuptiGetGraphNodeId)> graph_node_id{"cuptiGetGraphNodeId"};
  CuptiCall<decltype(cuptiActivityRegisterCallbacks)> register_buffers{
      "cuptiActivityRegisterCallbacks"};
  CuptiCall<decltype(cuptiGetTimestamp)> timestamp{"cuptiGetTimestamp"};
  CuptiCall<decltype(cuptiActivityEnable)> enable{"cuptiActivityEnable"};
  CuptiCall<decltype(cuptiActivityDisable)> disable{"cuptiActivityDisable"};
  CuptiCall<decltype(cuptiActivityFlushAll)> flush{"cuptiActivityFlushAll"};
  CuptiCall<decltype(cuptiActivityGetNextRecord)> next_record{"cuptiActivityGetNextRecord"};
  CuptiCall<decltype(cuptiActivityGetNumDroppedRecords)> dropped_records{
      "cuptiActivityGetNumDroppedRecords"};
  CuptiCall<decltype(cuptiActivityPushExternalCorrelationId)> push{
      "cuptiActivityPushExternalCorrelationId"};
  CuptiCall<decltype(cuptiActivityPopExternalCorrelationId)> pop{
      "cuptiActivityPopExternalCorrelationId"};

 private:
  CuptiLibrary() = default;
  bool find_all(void* handle, const std::string& file, std::string& why);

  CuptiCall<decltype(cuptiGetVersion)> get_version_{"cuptiGetVersion"};
  CuptiCall<decltype(cuptiGetResultString)> result_string_{"cuptiGetResultString"};
  std::string version_;
};

}  // namespace barestep
