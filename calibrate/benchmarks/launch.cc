// Latency of a launch, launches in a row, and a kernel in a graph.
#include "calibrate/benchmarks/rows.h"
#include "calibrate/gpu/kernels.h"
#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

namespace {

/// A captured graph and its executable form.
struct Graph {
  explicit Graph(cudaStream_t stream, int kernels) {
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < kernels; ++i) kernels::nothing(stream);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
  }
  ~Graph() {
    if (executable) cudaGraphExecDestroy(executable);
    if (graph) cudaGraphDestroy(graph);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
};

}  // namespace

void run_launch(Session& session) {
  constexpr int many = 1000;
  const cudaStream_t stream = session.stream();
  const auto per = [](Summary summary, int count) {
    summary.median /= count;
    return summary;
  };
  session.add("launch to end", Unit::seconds, session.time_host([&] {
    kernels::nothing(stream);
    CUDA(cudaStreamSynchronize(stream));
  }),
              "host's time to launch an empty kernel and wait for it");
  session.add("launches in a row", Unit::seconds,
              per(session.time_host([&] {
                for (int i = 0; i < many; ++i) kernels::nothing(stream);
                CUDA(cudaStreamSynchronize(stream));
              }),
                  many),
              "host's time for 1000 empty kernels, a share");
  const Graph graph(stream, many);
  session.add("kernel in a graph", Unit::seconds,
              per(session.time_host([&] {
                CUDA(cudaGraphLaunch(graph.executable, stream));
                CUDA(cudaStreamSynchronize(stream));
              }),
                  many),
              "host's time for a graph of 1000 empty kernels, a share");
}

}  // namespace shardfit::calibrate
