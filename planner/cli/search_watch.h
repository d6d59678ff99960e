#pragma once
// A long search at a terminal: its progress on one line, and Ctrl-C that ends it with the best so
// far.

#include <iosfwd>

#include "search/joint.h"

namespace shardfit::cli {

/// While it lives, the first interrupt asks the search to stop; a second one ends the program as
/// usual. Progress is written where `err` is the terminal, after half a second.
class SearchWatch {
 public:
  explicit SearchWatch(std::ostream& err);
  SearchWatch(const SearchWatch&) = delete;
  SearchWatch& operator=(const SearchWatch&) = delete;
  ~SearchWatch();

  const search::SearchControls& controls() const { return controls_; }

 private:
  std::ostream& err_;
  bool shown_ = false;
  void (*before_)(int);
  search::SearchControls controls_;
};

}  // namespace shardfit::cli
