// The module of the page: its questions and answers are those of lab/explorer.h and of
// lab/explain_report.h. A page writes a text to where question_of() says, calls what it is for, and
// reads the answer there.
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "lab/explain/explain_report.h"
#include "lab/predict/explorer.h"
#include "lab/predict/machine_card.h"

namespace {

std::string question, answer;
std::vector<barestep::TraceFile> traces;

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

// The page's: fills in the next bytes of its trace, as TraceSource says.
[[clang::import_module("page"), clang::import_name("read_trace")]] int read_trace(char* out,
                                                                                  unsigned bytes);
}

namespace {

/// The bytes of the answer, or what the page throws for a question that is refused.
template <class Ask>
unsigned bytes_of_answer(const Ask& ask) {
  try {
    answer = ask();
  } catch (const barestep::Error& error) {
    answer = error.what();
    refuse(answer.data(), static_cast<unsigned>(answer.size()));
  }
  return static_cast<unsigned>(answer.size());
}

barestep::JsonDocument cards() {
  return {question, {.what = "machine cards", .name = "the page's", .remedy = ""}};
}

}  // namespace

// The cards of explained traces are those of the question.
namespace barestep {

std::vector<std::string> card_names() {
  std::vector<std::string> names;
  const JsonDocument document = cards();
  for (const auto& [name, card] : document.root().members()) names.push_back(name);
  return names;
}

MachineCard load_card(const std::string& name) {
  const JsonDocument document = cards();
  return card_from(document.root().at(name.c_str()));
}

}  // namespace barestep

extern "C" {

[[clang::export_name("answer_question")]] unsigned answer_question() {
  return bytes_of_answer([] { return barestep::explore(question); });
}

/// Reads a trace; the question is its name.
[[clang::export_name("add_trace")]] unsigned add_trace() {
  return bytes_of_answer([] {
    traces.push_back(barestep::read_trace_file(
        {question, [](std::span<char> out) {
           return read_trace(out.data(), static_cast<unsigned>(out.size()));
         }}));
    return "";
  });
}

/// Explains those that were added; the question is the page's cards by name.
[[clang::export_name("explain_traces")]] unsigned explain_traces() {
  return bytes_of_answer([] { return barestep::explained_json(std::move(traces)); });
}

/// Where the answer is, until the next call.
[[clang::export_name("answer_text")]] const char* answer_text() {
  return answer.data();
}
}
