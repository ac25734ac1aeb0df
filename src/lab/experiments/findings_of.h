// What most experiments do, said once: cases as rows of options, and a builder of findings, tables
// by figures (case_figures.h) and plots.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/experiments/calculations.h"
#include "lab/experiments/case_figures.h"

namespace barestep {

/// The run with options as one types them: "--scheme zero1 --no-overlap". --batch-size is that of
/// all ranks.
Workload with(Workload run, std::string_view options);

/// A case as data: its name, in words what distinguishes it, and its options.
struct CaseRow {
  std::string key, words{}, options{};
};
std::vector<Case> cases_of(const Setting& setting, const Workload& run,
                           std::span<const CaseRow> rows);

/// A column of a table: a figure, perhaps under another title, or any text of a case.
struct Column {
  std::string title;
  std::function<std::string(const CaseData& of)> text;
  std::string figure{};  // empty if it is none

  Column(const char* name);  // NOLINT(google-explicit-constructor)
  Column(const char* name, std::string its_title);
  Column(std::string its_title, std::function<std::string(const CaseData& of)> its_text)
      : title(std::move(its_title)), text(std::move(its_text)) {}
  Column(std::string its_title, std::function<std::string(const Measurement& measured)> its_text);
};

/// How many times as fast as another case.
Column speed_against(const std::string& reference, std::string title);

/// A comparison to make: the condition of `b` and that of `a` in words, "with ddp". A name is that
/// of the finding; without one it is `b`.
struct Compared {
  std::string a, b;
  std::string words_b, words_a;
  std::string name{};
  std::string noun = "step";
};

struct Together {
  bool as_family = true;      // one of several that a reader chooses from
  bool by_sample = false;     // times of a sample
  bool within_cores = false;  // without those of ranks that share cores
};

class FindingsOf {
 public:
  explicit FindingsOf(const Results& results) : results_(results) {}

  /// A finding about times, and one without noise.
  FindingsOf& timed(std::string name, std::string text, std::optional<Word> word = {});
  FindingsOf& untimed(std::string name, std::string text, std::optional<Word> word = {});
  /// On which side of a border an estimate is, in one of three texts: above it, below it, or where
  /// its interval does not decide. With `rest`, "ABOVE: REST."
  FindingsOf& judge(std::string name, const Estimate& of, double border,
                    const std::array<std::string, 3>& texts, const std::string& rest = "");
  FindingsOf& judge(std::string name, Word side, const std::array<std::string, 3>& texts,
                    const std::string& rest = "");
  /// A sentence for each.
  FindingsOf& compare(const std::vector<Compared>& all, Together how = {});
  /// Which of the cases is fastest, under the name "fastest".
  Fastest fastest(std::string_view what, const std::vector<std::string>& keys,
                  const std::vector<std::string>& words = {});
  /// A row for each case, or for each of `keys`.
  FindingsOf& table(std::string title, const std::vector<Column>& columns,
                    const std::vector<std::string>& keys = {}, std::string name = "table");
  FindingsOf& table(FindingTable table);
  /// The same for the experiment's cases at the course's size, simulated with each of these numbers
  /// of ranks, under the name "simulated-table"; and, if `chooses`, which of several ranks are
  /// fastest and need least memory, under "simulated-N".
  FindingsOf& simulated(const std::vector<int>& ranks, const std::vector<Column>& columns,
                        bool chooses = true);
  FindingsOf& plot(Plot plot);
  /// The phases of each case, under its key or label; or of each rank of each case.
  FindingsOf& phases(std::vector<std::string> labels = {});
  FindingsOf& phases_of_ranks(std::vector<std::string> labels = {});
  FindingsOf& keep(std::span<const Comparison> comparisons);

  [[nodiscard]] const std::vector<Comparison>& comparisons() const { return all_.comparisons; }
  operator Findings() const { return all_; }  // NOLINT(google-explicit-constructor)

 private:
  const Results& results_;
  Findings all_;
};

/// A point for each of these cases, hollow beyond the cores.
PlotSeries points_of(std::string name, const Results& results, const std::vector<std::string>& keys,
                     const std::function<double(const Measurement&)>& x,
                     const std::function<Estimate(const Measurement&)>& y, double scale = 1);

double batch_of(const Measurement& measured);
Estimate mean_s_of(const Measurement& measured);
Estimate samples_per_s_of(const Measurement& measured);

}  // namespace barestep
