#!/bin/sh
# Takes from the libraries what neither Spark's driver and executors nor the reports reach: two thirds of PySpark's size.
# Usage: leave-out.sh LIB, the folder that the packages were installed into. Each pattern must fit something, so that a
# newer PySpark which names its parts in another way is noticed.
set -eu
cd "$1"

leave_out() {
    for pattern in "$@"; do
        # Unquoted: the shell finds what fits.
        set -- $pattern
        [ -e "$1" ] || { echo "leave-out.sh: nothing is named $pattern any more" >&2; exit 1; }
        rm -rf "$@"
    done
}

# Other languages, other ways to start, samples; and a second copy of the Python part, as archives.
leave_out pyspark/bin/*.cmd pyspark/bin/*R pyspark/bin/beeline pyspark/bin/docker-image-tool.sh pyspark/bin/pyspark \
    pyspark/bin/run-example pyspark/bin/spark-connect-shell pyspark/bin/spark-pipelines pyspark/bin/spark-shell \
    pyspark/bin/spark-sql pyspark/sbin pyspark/data pyspark/examples pyspark/python
# Machine learning, graphs, pandas' interface, Spark Connect, pipelines, the older streaming.
leave_out pyspark/ml pyspark/mllib pyspark/pandas pyspark/pipelines pyspark/jars/connect-repl pyspark/jars/spark-connect_* \
    pyspark/jars/spark-mllib* pyspark/jars/spark-graphx_* pyspark/jars/spark-pipelines_* pyspark/jars/breeze* \
    pyspark/jars/spire* pyspark/jars/cats-kernel_* pyspark/jars/algebra_* pyspark/jars/lapack-* pyspark/jars/blas-* \
    pyspark/jars/arpack* pyspark/jars/JTransforms-* pyspark/jars/JLargeArrays-*
# Hive with its database, YARN, the Scala shell. The catalogue of tables is in memory.
leave_out pyspark/jars/spark-hive* pyspark/jars/hive-[!s]* pyspark/jars/hive-s[!t]* pyspark/jars/derby* \
    pyspark/jars/datanucleus-* pyspark/jars/jdo-api-* pyspark/jars/javax.jdo-* pyspark/jars/HikariCP-* \
    pyspark/jars/commons-dbcp-* pyspark/jars/libthrift-* pyspark/jars/libfb303-* pyspark/jars/spark-yarn_* \
    pyspark/jars/spark-repl_* pyspark/jars/scala-compiler-* pyspark/jars/jline-*
# State of streams on disk, and the history server's; coordination of standalone masters.
leave_out pyspark/jars/rocksdbjni-* pyspark/jars/leveldbjni-* pyspark/jars/curator-* pyspark/jars/zookeeper-*
# Native parts for other systems and processors.
case $(uname -m) in aarch64) other=x86_64 ;; *) other=aarch_64 ;; esac
leave_out "pyspark/jars/netty-*-linux-$other.jar" 'pyspark/jars/netty-*-osx-*' \
    'pyspark/jars/netty-*-windows-*' 'pyspark/jars/netty-*-riscv64.jar'
# Arrow to other storages and over the network; what only compiles against it; tests.
leave_out 'pyarrow/*flight*' 'pyarrow/*_s3*' pyarrow/include pyarrow/src pyarrow/tests \
    matplotlib/tests
