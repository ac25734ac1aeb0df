// The module of the page: its questions and answers are those of lab/explorer.h. A page writes the
// question to where question_of() says, calls answer_question(), and reads the answer there.
#include <string>

#include "core/error.h"
#include "lab/predict/explorer.h"

namespace {

std::string question, answer;

}  // namespace

extern "C" {

/// Room for a question of so many bytes; valid until the next call.
[[clang::export_name("question_of")]] char* question_of(unsigned bytes) {
  question.resize(bytes);
  return question.data();
}

// The page's: throws a JavaScript exception with this text.
[[clang::import_module("page"), clang::import_name("refuse"), noreturn]] void refuse(
    const char* text, unsigned bytes);

/// The bytes of the answer, or what the page throws for a question that is refused.
[[clang::export_name("answer_question")]] unsigned answer_question() {
  try {
    answer = barestep::explore(question);
  } catch (const barestep::Error& error) {
    answer = error.what();
    refuse(answer.data(), static_cast<unsigned>(answer.size()));
  }
  return static_cast<unsigned>(answer.size());
}

/// Where the answer is, until the next call.
[[clang::export_name("answer_text")]] const char* answer_text() {
  return answer.data();
}
}
