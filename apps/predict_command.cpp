#include "predict_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <string_view>

#include "commands.h"
#include "findings_text.h"
#include "options/option_values.h"
#include "session/run_program.h"

namespace barestep {
namespace {

void predict(const PredictOptions& options) {
  const MachineCard card = load_card(options.machine);
  print_now(text_of(predict_scaling(options.model, card, options.ranks)));
  print_now(fmt::format("\nRates of {}:\n{}", card.name, card.sources));
}

}  // namespace

void add_predict(CLI::App& app, PredictOptions& options) {
  CLI::App* predicts =
      app.add_subcommand("predict", "Simulate a step on a machine that is not here, by its card");
  predicts
      ->add_option("--machine", options.machine,
                   fmt::format("a card's file, or one of {}", fmt::join(card_names(), ", ")))
      ->required();
  const auto add_number = [&](const char* name, auto& number, std::int64_t last, const char* help) {
    return accept_whole_numbers(predicts->add_option(name, number, help), {1, last})
        ->capture_default_str();
  };
  add_number("--ranks", options.ranks, 1 << 20, "numbers of ranks")->delimiter(',');
  PredictedModel& model = options.model;
  add_number("--dim", model.dim, 1 << 17, "width of every layer");
  add_number("--depth", model.depth, 1000, "number of Linear layers");
  add_number("--batch-size", model.batch_size, 1 << 20, "samples in a step of all ranks");
  predicts
      ->add_option_function<std::string>(
          "--scheme",
          [&](const std::string& text) {
            model.scheme = static_cast<RankScheme>(
                choice({.where = "--scheme", .text = text}, kNamesOf<RankScheme>));
          },
          "what ranks exchange")
      ->type_name("ddp|zero1|factor")
      ->default_str("ddp");
  predicts->add_flag("--batch-per-rank", model.batch_per_rank,
                     "--batch-size is each rank's, which is weak scaling");
  predicts->callback([&] { predict(options); });
}

}  // namespace barestep
