// Asserts that an error has the right exit code and text.
#pragma once

#include "core/error.h"
#include "support/testing.h"

namespace barestep {

/// `action()` must throw an Error with this code, whose one line contains `text`.
template <class Action>
void expect_error(ExitCode code, const std::string& text, Action&& action) {
  try {
    action();
    ADD_FAILURE() << "nothing was refused; expected: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(text));
    EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
  }
}

}  // namespace barestep
