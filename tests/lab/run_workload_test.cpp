#include "lab/run_workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/process.h"

namespace barestep {
namespace {

using ::testing::HasSubstr;

TEST(MpiEnvironment, IsThatOfTheScript) {
  const ProcessResult shell =
      run_process({"/bin/bash", "-c", ". '" BARESTEP_MPI_ENV "' && env | sed 's/$/;/'"});
  ASSERT_EQ(shell.exit_code, 0) << shell.err;
  for (const std::string& variable : mpi_environment()) {
    EXPECT_THAT("\n" + shell.out, HasSubstr("\n" + variable + ";\n"));
  }
  // On this machine: the script looks for adapters in another way.
  EXPECT_EQ(shell.out.find("OMPI_MCA_mtl=^psm,psm2,ofi;") != std::string::npos,
            mpi_environment().back() == "OMPI_MCA_mtl=^psm,psm2,ofi");
}

}  // namespace
}  // namespace barestep
