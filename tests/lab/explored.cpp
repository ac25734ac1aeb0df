#include "lab/explored.h"

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
    const GivenOptions given = {
        {"dim", draw("64", "1000", "1024", "4096", "8192")},
        {"depth", draw("1", "2", "6", "7", "12")},
        {"batch-size", draw("1", "16", "64", "1000", "4096")},
        {"batch-per-rank", draw("false", "false", "true")},
        {"scheme", draw("ddp", "ddp", "zero1", "zero2", "zero3", "factor", "data-parallel")},
        {"precision", draw("fp32", "fp32", "tf32", "bf16")},
        {"recompute", draw("1", "1", "1", "2")},
        {"tensor", draw("1", "1", "1", "2")},
        {"pipeline", draw("1", "1", "1", "2")},
        {"delay-ms", draw("0", "0", "2.5")}};
    std::string options;
    GivenOptions asked;
    for (const auto& [name, value] : given) {
      options += fmt::format(R"({}"{}": "{}")", options.empty() ? "" : ", ", name, value);
      if (value != "false") asked.emplace(name, value);
    }
    each.asked = asked_run(asked);
    each.question = fmt::format(R"({{"card": {}, "ranks": {}, "options": {{{}}}}})",
                                text_of_card(each.card), each.ranks, options);
    left -= is_answered(each.question) ? 1 : 0;
    drawn.push_back(std::move(each));
  }
  return drawn;
}

std::string question_with(const std::string& options, const std::string& others) {
  return fmt::format(R"({{"card": {}, "ranks": 4, "options": {{{}}}{}}})",
                     text_of_card("h200-nvlink"), options, others);
}

}  // namespace barestep
