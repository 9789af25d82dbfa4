"""A file system of Hadoop's with the manners of HDFS, and with those of a bad day.

It is the local one, mounted under another scheme.  As in HDFS a rename answers false, and does
nothing, if the target is a file that is there or the target's folder is not.  ``wrong`` names a
call that goes wrong; those that Spark makes while it writes (``_temporary``) do not.

    refuse-rename, refuse-mkdirs, refuse-delete    nothing happens, and the answer is false
    deny-rename, deny-delete                       it happens, and the answer is false
    lie-rename                                     nothing happens, and the answer is true
    cut-rename                                     half of the file is copied, the answer is true
    raise-rename                                   it raises, once
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLASS = "penstock.tests.Strict"
JAVA = """
package penstock.tests;
import java.io.IOException;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Path;

public class Strict extends org.apache.hadoop.fs.viewfs.ViewFileSystem {
  public static volatile String wrong = "";

  public Strict() throws IOException {}
  public String getScheme() { return "strict"; }

  private boolean goes(String what, Path path) {
    return wrong.equals(what) && path.toString().indexOf("_temporary") < 0;
  }

  public boolean rename(Path source, Path target) throws IOException {
    if (goes("raise-rename", source)) { wrong = ""; throw new IOException("connection reset"); }
    if (goes("refuse-rename", source)) return false;
    if (goes("lie-rename", source)) return true;
    if (goes("cut-rename", source)) return half(source, target);
    if (!exists(source) || !exists(target.getParent())) return false;
    if (exists(target) && getFileStatus(target).isFile()) return false;
    return super.rename(source, target) && !goes("deny-rename", source);
  }

  private boolean half(Path source, Path target) throws IOException {
    FSDataInputStream from = open(source);
    FSDataOutputStream to = create(target, true);
    for (long left = getFileStatus(source).getLen() / 2; left > 0; left--) to.write(from.read());
    to.close();
    from.close();
    return delete(source, false);
  }

  public boolean mkdirs(Path path) throws IOException {
    return !goes("refuse-mkdirs", path) && super.mkdirs(path);
  }

  public boolean delete(Path path, boolean recursive) throws IOException {
    if (goes("refuse-delete", path)) return false;
    return super.delete(path, recursive) && !goes("deny-delete", path);
  }
}
"""


class Strict:
    """The file system, in Spark's JVM, over a folder of this machine."""

    def __init__(self, spark: SparkSession, base: Path) -> None:
        self._base = base
        name = base.name.replace("_", "-")
        self._mount = f"strict://{name}/base"
        jvm: Any = spark._jvm
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(JAVA)
        self._class = compiler.getClassLoader().loadClass(CLASS)
        configuration = spark._jsparkSession.sessionState().newHadoopConf()
        configuration.setClassLoader(compiler.getClassLoader())
        configuration.set("fs.strict.impl", CLASS)
        configuration.set(f"fs.viewfs.mounttable.{name}.link./base", f"file://{base}")
        # Kept by Hadoop for the place, so Spark needs neither class loader nor settings.
        jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI(self._mount), configuration)

    def uri(self, path: Path) -> str:
        return f"{self._mount}/{path.relative_to(self._base)}"

    def go_wrong(self, what: str) -> None:
        self._class.getField("wrong").set(None, what)
