#include "lab/explain/trace_scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace barestep {
namespace {

constexpr double kSmallLoss = 0.01;  // has no cause worth a line
constexpr double kAcceptable = 0.8;  // the least efficiency that POP calls so
constexpr double kSameWork = 0.05;   // ranks differ as much where a batch is not divisible

/// The factors that are no products of others.
constexpr ScalingFactor kSingleFactors[] = {ScalingFactor::kLoadBalance,
                                            ScalingFactor::kSerialization, ScalingFactor::kTransfer,
                                            ScalingFactor::kComputation};

/// Adds a rank's linear layers of a forward pass.
void add_layers(const TracedRank& rank, ScalingRun& run) {
  double flops = 0;  // of all steps
  for (const TraceEvent& event : rank.file.events) {
    const TraceFile::Linear* const linear = rank.file.linear_of(event);
    const std::int64_t at_ns = event.begin_ns + rank.shift_ns;
    const bool counts = linear != nullptr && linear->rows > 0 &&
                        std::ranges::any_of(rank.steps, [&](const RankStep& step) {
                          return step.has_account && at_ns >= step.begin_ns && at_ns < step.end_ns;
                        });
    if (!counts) continue;
    const std::int64_t weights = linear->inputs * linear->outputs;
    run.weights.insert(weights);
    flops += 2.0 * static_cast<double>(linear->rows) * static_cast<double>(weights);
  }
  run.flops +=
      flops / static_cast<double>(std::ranges::count(rank.steps, true, &RankStep::has_account));
  for (const TracedNode& node : rank.file.nodes) {
    if (node.phase != Phase::kForward) continue;
    run.flops += node.flops / static_cast<double>(std::max<std::size_t>(1, rank.file.steps.size()));
  }
}

std::string waits_text(const TracedRun& run, const RunAccount& account, std::size_t rank) {
  const RankSum sum = rank_sum(account, rank);
  const auto most = std::ranges::max_element(account.waited_ns[rank]);
  const auto other = static_cast<std::size_t>(most - account.waited_ns[rank].begin());
  const std::int64_t stages_ns = sum.part_ns[Part::kOtherStages];
  return fmt::format("rank {} waits {} for others, most for {}", run.ranks[rank].rank,
                     time_text(sum.step_s(sum.waiting_ns + stages_ns)),
                     *most == 0 ? "other stages" : fmt::format("rank {}", run.ranks[other].rank));
}

/// The collective whose bytes move longest while nothing else goes on.
std::string moving_text(const RunAccount& account) {
  const auto moving_ns = [](const BucketAccount& of) {
    return of.name == "message" ? 0 : of.exposed_ns - of.waiting_ns;
  };
  const auto most = std::ranges::max_element(account.buckets, {}, moving_ns);
  const RankSum all = rank_sum(account);
  std::string text = "exchanging, " + time_text(all.step_s(all.moving_ns()));
  if (most == account.buckets.end()) return text;
  return text + fmt::format(", most in {}: {}", most->text(),
                            time_text(ns_seconds(moving_ns(*most)) /
                                      static_cast<double>(account.accounts.size())));
}

/// Finds each run's work by the problem: that stated, or that of the flops; where a run does not
/// tell them, by what a rank of the most ranks computes.
ScalingProblem find_work(std::vector<ScalingRun>& runs, std::optional<ScalingProblem> stated) {
  const ScalingRun base = runs.front(), last = runs.back();
  const auto set = [&](ScalingProblem problem) {
    for (ScalingRun& run : runs) {
      run.work = problem == ScalingProblem::kStrong ? 1
                 : problem == ScalingProblem::kWeak ? 1.0 * run.ranks / base.ranks
                                                    : run.flops / base.flops;
    }
    return problem;
  };
  if (stated) return set(*stated);
  if (std::ranges::count(runs, 0, &ScalingRun::flops) > 0) {
    const bool is_weak = last.mean_s / base.mean_s > std::sqrt(1.0 * base.ranks / last.ranks);
    return set(is_weak ? ScalingProblem::kWeak : ScalingProblem::kStrong);
  }
  const auto fits = [&](const ScalingRun& run) {
    return std::abs(run.flops / base.flops / run.work - 1) < kSameWork;
  };
  for (const ScalingProblem problem : {ScalingProblem::kStrong, ScalingProblem::kWeak}) {
    if (set(problem); std::ranges::all_of(runs, fits)) return problem;
  }
  return set(ScalingProblem::kOther);
}

void find_factors(std::vector<ScalingRun>& runs) {
  using enum ScalingFactor;
  const ScalingRun base = runs.front();
  for (ScalingRun& run : runs) {
    const double share = run.work * base.ranks / run.ranks;  // of a rank, in the base's
    auto& factors = run.factors;
    factors[kLoadBalance] = run.mean_s / run.longest_s;
    factors[kSerialization] = run.longest_s / run.ideal_s;
    factors[kTransfer] = run.ideal_s / run.step_s;
    factors[kCommunication] = factors[kSerialization] * factors[kTransfer];
    factors[kParallel] = factors[kLoadBalance] * factors[kCommunication];
    factors[kComputation] = share * base.mean_s / run.mean_s;
    factors[kGlobal] = factors[kParallel] * factors[kComputation];
    run.speed_up = run.work * base.step_s / run.step_s;
    const auto excess_s = [&](Part part) {
      return is_exchange(part) ? 0 : run.part_s[part] - share * base.part_s[part];
    };
    const Part part = *std::ranges::max_element(kValuesOf<Part>, {}, excess_s);
    run.causes[kComputation] =
        fmt::format("ranks spend {} more in the mean on {} than on {} for the same work{}",
                    time_text(excess_s(part)), traits_of(part).words, counted(base.ranks, "rank"),
                    run.named[part]);
  }
}

/// By ScalingProblem.
constexpr std::string_view kProblemTexts[] = {
    "strong scaling: the whole batch stays the same",
    "weak scaling: the batch of a rank stays the same",
    "neither strong nor weak scaling: compared for as many flops of linear layers"};

/// The answers, and the paragraph of an application for compute time.
std::vector<Finding> scaling_sentences(const std::vector<ScalingRun>& runs, ScalingProblem kind) {
  constexpr ScalingFactor kGlobal = ScalingFactor::kGlobal;
  const std::string_view problem = kProblemTexts[static_cast<std::size_t>(kind)];
  const auto power = [](const ScalingRun& run) { return run.speed_up * run.factors[kGlobal]; };
  const ScalingRun &base = runs.front(), &last = runs.back(),
                   &knee = *std::ranges::max_element(runs, {}, power);
  const auto ranks = [](const ScalingRun& run) { return counted(run.ranks, "rank"); };
  std::vector<Finding> sentences = {fmt::format(
      "On {} a step takes {}, and on {} {}: samples go through {} as fast, a global efficiency of "
      "{} ({}).",
      ranks(last), time_text(last.step_s), ranks(base), time_text(base.step_s),
      factor_text(last.speed_up), percent_text(last.factors[kGlobal]), problem)};
  sentences.emplace_back(
      &knee == &last
          ? fmt::format("No knee up to {}: speed-up times efficiency still grows.", ranks(last))
          : fmt::format("The knee is at {}: from there on, more ranks cost more "
                        "efficiency than they gain speed.",
                        ranks(knee)));
  const auto bad = std::ranges::find_if(
      runs, [](const ScalingRun& run) { return run.factors[kGlobal] < kAcceptable; });
  if (bad != runs.end()) {
    sentences.emplace_back(fmt::format("Below {}, the least that POP calls acceptable, from {} on.",
                                       chosen_percent(kAcceptable), ranks(*bad)));
  }
  const ScalingFactor worst = *std::ranges::min_element(
      kSingleFactors, {}, [&](ScalingFactor factor) { return last.factors[factor]; });
  if (last.factors[worst] < 1 - kSmallLoss) {
    sentences.emplace_back(fmt::format("The largest loss on {} is in {}, which is {}: {}.",
                                       ranks(last), name_of(worst),
                                       percent_text(last.factors[worst]), last.causes[worst]));
  }
  if (&knee == &base) {
    sentences.emplace_back(
        fmt::format("More than {} does not pay: fix the largest loss first.", ranks(base)));
    return sentences;
  }
  std::vector<std::string> counts, losses;
  for (const ScalingRun& run : runs) counts.push_back(std::to_string(run.ranks));
  for (const ScalingFactor factor : kSingleFactors) {
    losses.push_back(fmt::format("{} {}", name_of(factor), percent_text(knee.factors[factor])));
  }
  sentences.emplace_back(fmt::format(
      "For a proposal: a training step was profiled on {} ranks ({}). On {} it takes {}, the mean "
      "of {}: {} as fast as on {} where {} were ideal. By the metrics of the POP Centre of "
      "Excellence its global efficiency is {}, the product of {}. We ask for runs on {}, where "
      "speed-up times efficiency is largest of these.",
      list_text(counts), problem, ranks(knee), time_text(knee.step_s), counted(knee.steps, "step"),
      factor_text(knee.speed_up), ranks(base), factor_text(1.0 * knee.ranks / base.ranks),
      percent_text(knee.factors[kGlobal]), list_text(losses), ranks(knee)));
  return sentences;
}

/// Each factor is the product of those below it with one dash more.
std::vector<FindingTable> scaling_tables(const std::vector<ScalingRun>& runs) {
  constexpr std::string_view kDashes[] = {"", "- ", "-- ", "-- ", "--- ", "--- ", "- "};
  std::vector<FindingTable> tables = {
      {.title = "Efficiency as a product of factors, by POP's metrics", .columns = {"of a step"}},
      {.title = "What is lost, and to what, in a step",
       .columns = {"cause", "ranks", "factor", "its value"}}};
  std::vector<std::vector<std::string>>& rows = tables[0].rows;
  rows = {{"time"}, {"steps profiled"}, {"speed-up"}, {"ideal speed-up"}};
  for (const ScalingFactor factor : kValuesOf<ScalingFactor>) {
    rows.push_back(
        {fmt::format("{}{}", kDashes[static_cast<std::size_t>(factor)], name_of(factor))});
  }
  for (const ScalingRun& run : runs) {
    tables[0].columns.push_back(counted(run.ranks, "rank"));
    std::vector<std::string> cells = {time_text(run.step_s), std::to_string(run.steps),
                                      factor_text(run.speed_up),
                                      factor_text(1.0 * run.ranks / runs.front().ranks)};
    for (const double factor : run.factors) cells.push_back(percent_text(factor));
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].push_back(cells[i]);
    for (const ScalingFactor factor : kSingleFactors) {
      if (run.factors[factor] > 1 - kSmallLoss) continue;
      tables[1].rows.push_back({run.causes[factor], std::to_string(run.ranks),
                                std::string(name_of(factor)), percent_text(run.factors[factor])});
    }
  }
  if (tables[1].rows.empty()) tables.pop_back();
  return tables;
}

Plot scaling_plot(const std::vector<ScalingRun>& runs) {
  using enum ScalingFactor;
  Plot plot{.title = "Efficiency and its factors",
            .x_label = "ranks",
            .y_label = "percent",
            .log_x = true};
  for (const ScalingFactor factor :
       {kGlobal, kLoadBalance, kSerialization, kTransfer, kComputation}) {
    PlotSeries series{.name = std::string(name_of(factor)),
                      .style = factor == kGlobal ? SeriesStyle::kMarked : SeriesStyle::kDashed};
    for (const ScalingRun& run : runs) {
      series.points.push_back(plot_point(run.ranks, 100 * run.factors[factor]));
    }
    plot.series.push_back(std::move(series));
  }
  return plot;
}

/// Ascending ranks, of one model; tensor parallelism cuts each layer.
void require_scaling(const std::vector<ScalingRun>& runs) {
  const ScalingRun& base = runs.front();
  for (std::size_t i = 1; i < runs.size(); ++i) {
    const ScalingRun& run = runs[i];
    if (run.ranks == runs[i - 1].ranks) {
      refuse_trace(run.path,
                   fmt::format("has traces of {}, as '{}' has", counted(run.ranks, "rank"),
                               runs[i - 1].path.string()),
                   "give one folder for each number of ranks");
    }
    const auto is_cut = [&](std::int64_t whole, std::int64_t part) {
      return whole * base.ranks == part * run.ranks;
    };
    const bool is_known = !run.weights.empty() && !base.weights.empty();
    const bool is_same =
        run.weights == base.weights || std::ranges::equal(base.weights, run.weights, is_cut);
    if (!is_known || is_same) continue;
    refuse_trace(run.path, fmt::format("has other linear layers than '{}'", base.path.string()),
                 "give runs of one model");
  }
}

}  // namespace

ScalingRun scaling_run_of(std::filesystem::path path, const TracedRun& run) {
  using enum ScalingFactor;
  const RunAccount account = account_of(run);
  ScalingRun all{.path = std::move(path), .ranks = static_cast<int>(run.ranks.size())};
  const std::vector<double> gains_s = ideal_network_gains(run, account);
  const auto is_beside_first = [&](const TracedRank& rank) {
    return rank.on_host && rank.file.host == run.ranks.front().file.host;
  };
  if (all.ranks > 1 && std::ranges::all_of(run.ranks, is_beside_first)) {
    all.shared_host = run.ranks.front().file.host;
  }
  std::size_t longest = 0, last = 0;  // computes, or would end if bytes moved in no time
  EnumArray<Part, double> most_s{};   // of any rank
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const RankSum sum = rank_sum(account, rank);
    const std::int64_t job = run.ranks[rank].file.world_size;
    if (job > all.ranks) {
      refuse_trace(all.path,
                   fmt::format("has traces of {} of the job's {}", all.ranks, counted(job, "rank")),
                   "give those of all ranks");
    }
    if (sum.steps == 0) {
      refuse_trace(run.ranks[rank].file.path, "has no complete step", "profile two or more");
    }
    double computes_s = 0;
    for (const Part part : kValuesOf<Part>) {
      const double part_s = sum.step_s(sum.part_ns[part]);
      computes_s += is_exchange(part) ? 0 : part_s;
      all.part_s[part] += part_s / all.ranks;
      if (part_s > most_s[part]) all.named[part] = cause_text(run, account, rank, part);
      most_s[part] = std::max(most_s[part], part_s);
    }
    if (computes_s > all.longest_s) longest = rank;
    const double step_s = sum.step_s(sum.wall_ns),
                 ideal_s = step_s - gains_s[rank] / static_cast<double>(sum.steps);
    if (ideal_s > all.ideal_s) last = rank;
    all.longest_s = std::max(all.longest_s, computes_s);
    all.mean_s += computes_s / all.ranks;
    all.step_s = std::max(all.step_s, step_s);
    all.ideal_s = std::max(all.ideal_s, ideal_s);
    all.steps = std::max(all.steps, sum.steps);
    add_layers(run.ranks[rank], all);
  }
  all.causes[kLoadBalance] = excess_text(run, account, longest);
  all.causes[kSerialization] = waits_text(run, account, last);
  const RankSum sum = rank_sum(account);
  all.causes[kTransfer] = 2 * sum.step_s(sum.moving_ns()) < all.step_s - all.ideal_s
                              ? fmt::format("messages, {} in a step until they arrive",
                                            time_text(all.step_s - all.ideal_s))
                              : moving_text(account);
  return all;
}

ExplainAnswer scaling_answer(std::vector<ScalingRun> runs, std::optional<ScalingProblem> stated) {
  std::ranges::stable_sort(runs, {}, &ScalingRun::ranks);
  require_scaling(runs);
  const bool is_assumed = !stated && std::ranges::count(runs, 0, &ScalingRun::flops) > 0;
  const ScalingProblem problem = find_work(runs, stated);
  find_factors(runs);
  ExplainAnswer answer{.title = "Scaling of a run, from its traces",
                       .name = "scaling",
                       .findings = {.timed = scaling_sentences(runs, problem),
                                    .tables = scaling_tables(runs),
                                    .plots = {scaling_plot(runs)}}};
  const auto path = [](const ScalingRun& run) { return typed(run.path); };
  answer.findings.timed.emplace_back(fmt::format(
      "To see what {} do: mlp_lab explain {}. To verify a change, profile it on as many: mlp_lab "
      "explain --scaling {} NEW_TRACES{}.",
      counted(runs.back().ranks, "rank"), path(runs.back()), path(runs.front()),
      stated ? fmt::format(" --problem {}", name_of(problem)) : ""));
  answer.findings.untimed.emplace_back(
      "Computation is what no exchange with other ranks holds: the host, waits for data and idle "
      "gaps count as such. Times are means over the steps of one run of each number of ranks.");
  if (!runs.back().shared_host.empty()) {
    answer.findings.untimed.emplace_back(fmt::format(
        "All {} are on the CPU of one machine, {}: where they have more threads than it "
        "has cores, they wait for these, which counts as computation.",
        counted(runs.back().ranks, "rank"), on_one_line(runs.back().shared_host)));
  }
  if (is_assumed) {
    answer.findings.untimed.emplace_back(fmt::format(
        "The traces do not tell the batch; by what ranks compute, {} scaling is assumed. State it "
        "with --problem, or record shapes (record_shapes=True).",
        name_of(problem)));
  }
  for (const ScalingRun& run : runs) {
    auto& figures = answer.figures[counted(run.ranks, "rank")];
    figures = {{"step_s", run.step_s}, {"speed-up", run.speed_up}, {"work", run.work}};
    for (const ScalingFactor factor : kValuesOf<ScalingFactor>) {
      figures[std::string(name_of(factor))] = run.factors[factor];
    }
  }
  return answer;
}

}  // namespace barestep
