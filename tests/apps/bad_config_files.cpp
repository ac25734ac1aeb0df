// Bad config files, and the expected error lines.
#include "apps/bad_input_cases.h"

namespace barestep {

std::vector<BadInput> bad_config_files() {
  const std::vector<std::string> run = {"--config", "run.json"};
  const std::string one_object = "; a config file is one JSON object";
  return {
      {10, words("--config missing.json"), 66,
       "config file 'missing.json': No such file or directory; check the path"},
      {10, words("--config ."), 66, "config file '.': Is a directory; check the path"},
      {10, words("--config /dev/null"), 66,
       "config file '/dev/null': is not a regular file; check the path"},
      {10, run, 78,
       "run.json:1:16: not JSON: syntax error while parsing object separator - unexpected end of "
       "input; expected ':'" +
           one_object,
       "{\"dim\": 8, \"lr\""},
      {10, run, 78,
       "run.json:3:6: not JSON: syntax error while parsing object - unexpected string literal; "
       "expected '}'" +
           one_object,
       "{\n  \"dim\": 8\n  \"lr\": 1\n}\n"},
      {10, run, 78,
       "run.json:3:3: unknown key 'batchsize': no option has that name; did you mean batch-size?",
       "{\n  \"dim\": 8,\n  \"batchsize\": 64\n}\n"},
      {10, run, 78,
       "run.json:3:3: unknown key 'batchsize': no option has that name; did you mean batch-size?",
       "{\r\n  \"dim\": 8,\r\n  \"batchsize\": 64\r\n}\r\n"},
      {10, run, 78, "run.json:1:2: unknown key '--dim': no option has that name; did you mean dim?",
       "{\"--dim\": 8}"},
      {10, run, 78, "run.json:1:2: unknown key 'config': no option has that name; --help lists all",
       "{\"config\": \"other.json\"}"},
      {10, run, 78, "run.json:1:12: key 'dim': given twice; give it once",
       "{\"dim\": 8, \"dim\": 9}"},
      {10, run, 78, "run.json:1:2: dim: a string where a number should be; --help describes --dim",
       "{\"dim\": \"8\"}"},
      {10, run, 78,
       "run.json:1:2: plan: a number where true or false should be; --help describes --plan",
       "{\"plan\": 1}"},
      {10, run, 78,
       "run.json:1:2: layers: a string where an array of numbers should be; --help describes "
       "--layers",
       "{\"layers\": \"784,10\"}"},
      {10, run, 78,
       "run.json:1:2: layers: a string where an array of numbers should be; --help describes "
       "--layers",
       "{\"layers\": [784, \"10\"]}"},
      {10, run, 78,
       "run.json:1:2: layers: an array where an array of numbers should be; --help describes "
       "--layers",
       "{\"layers\": [[784, 10]]}"},
      {10, run, 78, "run.json:1:2: lr: null where a number should be; --help describes --lr",
       "{\"lr\": null}"},
      {10, run, 78, "run.json:1:2: lr: an object where a number should be; --help describes --lr",
       "{\"lr\": {\"x\": 1}}"},
      {10, run, 78, "run.json:1:2: loss: true where a string should be; --help describes --loss",
       "{\"loss\": true}"},
      {10, run, 78,
       "run.json:1:2: memory: true where a number or a string should be; --help describes --memory",
       "{\"memory\": true}"},
      {10, run, 78, "run.json:1:2: batch-size: the value is empty" + kNeedsBatch,
       "{\"batch-size\": []}"},
      {10, run, 78,
       "run.json:1:2: batch-size: a string where a number or an array of numbers should be; --help "
       "describes --batch-size",
       "{\"batch-size\": \"8,16\"}"},
      {10, run, 78, "run.json:2:1: batch-size '0': out of range" + kNeedsBatch,
       "{\n\"batch-size\": 0}"},
      {10, run, 78,
       "run.json:1:2: steps '1e3': not a whole number; give a whole number from 1 to 1000000000",
       "{\"steps\": 1e3}"},
      {10, run, 78, "run.json:1:2: layers: the value is empty" + kNeedsWidths, "{\"layers\": []}"},
      {10, run, 78, "run.json:1:2: seed '18446744073709551616': out of range" + kNeedsSeed,
       "{\"seed\": 18446744073709551616}"},
      {10, run, 78, "run.json:2:1: lr '1e999': out of range; --help describes --lr",
       "{\n\"lr\": 1e999}"},
      {10, run, 78, "run.json:1:2: layers '1e999': out of range; --help describes --layers",
       "{\"layers\": [784, 1e999]}"},
      {10, run, 78,
       "run.json:1:2: plan: a number where true or false should be; --help describes --plan",
       "{\"plan\": 1e999}"},
      {10, run, 78, "run.json:1:1: a number where an object should be" + one_object, "1e999"},
      {10, run, 78, "run.json:1:2: lr '1e-60': rounds to 0 in float32; give at least 1e-45",
       "{\"lr\": 1e-60}"},
      {10, run, 78, "run.json:1:2: save: holds a NUL character; leave \\u0000 out",
       "{\"save\": \"w\\u0000.st\"}"},
      {10, run, 78, "config file 'run.json': not JSON: holds a NUL byte" + one_object,
       std::string("{\"dim\": 8}\0, 3", 14)},
      {10, run, 78, "run.json:1:1: an array where an object should be" + one_object, "[1, 2]"},
      {10, run, 78, "run.json:1:1: a number where an object should be" + one_object, "3"},
      {10, run, 78, "run.json:1:2: unknown key 'dimm': no option has that name; did you mean dim?",
       "\xEF\xBB\xBF{\"dimm\": 8}"},
      {10, run, 78, "--steps: cannot be combined with --epochs; give one of the two",
       "{\"steps\": 3, \"epochs\": 1}"},
  };
}

}  // namespace barestep
