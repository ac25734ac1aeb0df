#include "lab/explored.h"

#include <fmt/format.h>

#include <iterator>
#include <random>

#include "core/error.h"
#include "core/input_file.h"
#include "lab/predict/explorer.h"
#include "lab/predict/machine_card.h"

namespace barestep {
namespace {

std::string text_of_card(const std::string& name) {
  return InputFile(card_file(name), "card").text(1 << 20);
}

bool is_answered(const std::string& question) {
  try {
    explore(question);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::vector<Explored> drawn_questions(int answered) {
  std::minstd_rand random(54);
  const auto draw = [&](auto... choices) {
    const std::common_type_t<decltype(choices)...> all[] = {choices...};
    return all[random() / 16 % std::size(all)];
  };
  const std::vector<std::string> cards = card_names();
  std::vector<Explored> drawn;
  for (int left = answered; left > 0;) {
    Explored each;
    each.card = cards[random() / 16 % cards.size()];
    each.ranks = draw(1, 2, 3, 4, 8);
    PredictedModel& model = each.model;
    model.dim = draw(64, 1000, 1024, 4096, 8192);
    model.depth = draw(1, 2, 6, 7, 12);
    model.batch_size = draw(1, 16, 64, 1000, 4096);
    model.batch_per_rank = draw(0, 0, 1) == 1;
    model.data_parallel = draw(0, 0, 0, 1) == 1;
    model.scheme = draw(RankScheme::kDdp, RankScheme::kDdp, RankScheme::kZero1, RankScheme::kZero2,
                        RankScheme::kZero3, RankScheme::kFactor);
    model.precision = draw(Precision::kFp32, Precision::kFp32, Precision::kTf32, Precision::kBf16);
    model.recompute = draw(1, 1, 1, 2);
    model.tensor = draw(1, 1, 1, 2);
    model.pipeline = draw(1, 1, 1, 2);
    model.delay_ms = draw(0.0, 0.0, 2.5);
    each.question = fmt::format(
        R"({{"card": {}, "ranks": {}, "data-parallel": {}, "options": {{"dim": "{}", "depth": "{}",
             "batch-size": "{}", "batch-per-rank": "{}", "scheme": "{}", "precision": "{}",
             "recompute": "{}", "tensor": "{}", "pipeline": "{}", "delay-ms": "{}"}}}})",
        text_of_card(each.card), each.ranks, model.data_parallel, model.dim, model.depth,
        model.batch_size, model.batch_per_rank, name_of(model.scheme), name_of(model.precision),
        model.recompute, model.tensor, model.pipeline, model.delay_ms);
    left -= is_answered(each.question) ? 1 : 0;
    drawn.push_back(std::move(each));
  }
  return drawn;
}

std::string question_with(const std::string& options, const std::string& others) {
  return fmt::format(R"({{"card": {}, "ranks": 4, "data-parallel": false, "options": {{{}}}{}}})",
                     text_of_card("h200-nvlink"), options, others);
}

}  // namespace barestep
