#include "core/printer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/op_text.h"
#include "core/order.h"
#include "support/sample_programs.h"

namespace barestep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Explain, PrintsTheWholeStepAsATable) {
  SampleProgram sample = training_step({.widths = {2, 3}, .rows = 4, .fused = true});
  order(sample.program);
  EXPECT_EQ("\n" + explain(sample.program), R"(
)");
}

TEST(Explain, ShowsDevicesAndMessagesWhereThereAreAny) {
  SampleProgram sample = data_parallel_step({.widths = {2, 3}, .rows = 4}, 2);
  order(sample.program);
  const std::string text = explain(sample.program);
  EXPECT_EQ(text, "");
  EXPECT_THAT(text, HasSubstr("device"));
  EXPECT_THAT(explain(training_step({}).program), Not(HasSubstr("device")));
}

TEST(PlanTable, PrintsEveryByteByCategory) {
  const SampleProgram sample = training_step({.widths = {1024, 1024}, .rows = 64});
  const MemoryPlan plan(*sample.buffers);
  EXPECT_EQ("\n" + plan_table(plan, *sample.buffers, {"cpu"}), R"(
)");
}

}  // namespace
}  // namespace barestep
