// What others take of the cores while something is measured.
#pragma once

namespace barestep {

/// Counts the time that other programs, and the hosts of a virtual machine, spend on all cores
/// since its construction (/proc/stat, proc(5)). The system counts in ticks of about 10 ms: what is
/// watched for less than some tenths of a second is a rough guess.
class CoreWatch {
 public:
  CoreWatch();

  /// Share of all cores' time since the construction that was spent neither idle nor, as `own_s`
  /// says, on this program and its children. 0 where the system does not tell.
  [[nodiscard]] double others_share(double own_s) const;

 private:
  struct Times {
    double busy_s = 0;
    double all_s = 0;
  };
  static Times now();

  Times begin_;
};

}  // namespace barestep
