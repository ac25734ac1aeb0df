// The module of the page: its questions and answers are those of lab/explorer.h. A page writes the
// question to where question_of() says, calls answer_question(), and reads the answer there.
#include <string>

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

/// The bytes of the answer. Throws Error, which runtime.cpp hands to the page.
[[clang::export_name("answer_question")]] unsigned answer_question() {
  answer = barestep::explore(question);
  return static_cast<unsigned>(answer.size());
}

/// Where the answer is, until the next call.
[[clang::export_name("answer_text")]] const char* answer_text() {
  return answer.data();
}
}
