// A tool that NVTX finds through NVTX_INJECTION64_PATH, like a profiler, and that records the
// ranges.
#include <nvtx3/nvToolsExt.h>

#include <string>
#include <vector>

namespace {

std::vector<std::string> ranges;

int push(const char* name) {
  ranges.emplace_back(name);
  return 0;
}

int pop() {
  ranges.emplace_back("end");
  return 0;
}

}  // namespace

extern "C" {

std::vector<std::string>* fake_nvtx_ranges() {
  return &ranges;
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&pop);
  return 1;
}

}  // extern "C"
