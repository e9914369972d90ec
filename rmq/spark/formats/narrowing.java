// An optimizer rule of Spark that has our reads make only the columns that a query uses. Spark compiles it at run
// time by Janino, which knows neither lambdas nor type arguments: see narrowing.py.

package rmq.spark;

import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;

public final class Narrowing extends Rule {
  private static final String PACKAGE = "org.apache.spark.sql.execution.datasources.v2.python.";

  private final Collection sources;
  private final String function;
  private final Class scans;
  private final Field read;
  private final Field columns;

  /**
   * `sources` are names of data sources in Python; `function` is the module and the name of the function that makes
   * a read's function narrower. Throws an exception if this Spark's classes are others.
   */
  public Narrowing(Collection sources, String function) throws ReflectiveOperationException {
    this.sources = sources;
    this.function = function;
    ClassLoader loader = DataSourceV2ScanRelation.class.getClassLoader();
    this.scans = Class.forName(PACKAGE + "PythonScan", false, loader);
    Class factory = Class.forName(PACKAGE + "PythonPartitionReaderFactory", false, loader);
    this.read = only(factory, byte[].class);
    this.columns = only(factory, StructType.class);
  }

  private static Field only(Class type, Class wanted) throws NoSuchFieldException {
    Field found = null;
    Field[] fields = type.getDeclaredFields();
    for (int at = 0; at < fields.length; at++) {
      if (fields[at].getType() == wanted) {
        if (found != null) {
          throw new NoSuchFieldException("two fields of " + wanted + " in " + type);
        }
        found = fields[at];
      }
    }
    if (found == null) {
      throw new NoSuchFieldException("no field of " + wanted + " in " + type);
    }
    found.setAccessible(true);
    return found;
  }

  public TreeNode apply(TreeNode plan) {
    if (plan instanceof Project) {
      LogicalPlan child = ((Project) plan).child();
      AttributeSet used = plan(plan).references();
      List filters = new ArrayList();
      while (child instanceof Filter) {
        filters.add(child);
        used = used.$plus$plus(child.references());
        child = ((Filter) child).child();
      }
      if (child instanceof DataSourceV2ScanRelation) {
        TreeNode found = narrowed((DataSourceV2ScanRelation) child, used);
        if (found == child) {
          return plan;
        }
        for (int at = filters.size() - 1; at >= 0; at--) {
          found = withChild((TreeNode) filters.get(at), found);
        }
        return withChild(plan, found);
      }
    }
    return plan.mapChildren(new Each(this));
  }

  private static LogicalPlan plan(TreeNode node) {
    return (LogicalPlan) node;
  }

  private static TreeNode withChild(TreeNode parent, TreeNode child) {
    return parent.withNewChildren(CollectionConverters.asScala(Arrays.asList(new Object[] {child})).toSeq());
  }

  /** The relation with the used columns only, in their order, or with one small column if none is used. */
  private TreeNode narrowed(DataSourceV2ScanRelation relation, AttributeSet used) {
    Scan scan = relation.scan();
    StructField[] fields = scan.readSchema().fields();
    List output = CollectionConverters.asJava(relation.output());
    if (scan.getClass() != scans || !sources.contains(relation.relation().table().name())
        || fields.length != output.size()) {
      return relation;
    }
    List kept = new ArrayList();
    int smallest = 0;
    for (int at = 0; at < fields.length; at++) {
      AttributeReference one = (AttributeReference) output.get(at);
      if (!one.name().equals(fields[at].name())) {
        return relation;
      }
      if (used.contains((NamedExpression) one)) {
        kept.add(Integer.valueOf(at));
      }
      if (fields[at].dataType().defaultSize() < fields[smallest].dataType().defaultSize()) {
        smallest = at;
      }
    }
    if (kept.isEmpty()) {
      kept.add(Integer.valueOf(smallest));
    }
    if (kept.size() == fields.length) {
      return relation;
    }
    StructField[] few = new StructField[kept.size()];
    List attributes = new ArrayList();
    for (int at = 0; at < few.length; at++) {
      int place = ((Integer) kept.get(at)).intValue();
      few[at] = fields[place];
      attributes.add(output.get(place));
    }
    Object[] parts = new Object[relation.productArity()];
    for (int at = 0; at < parts.length; at++) {
      Object part = relation.productElement(at);
      parts[at] = part == scan ? new NarrowScan(this, scan, new StructType(few))
          : part == relation.output() ? CollectionConverters.asScala(attributes).toSeq() : part;
    }
    return relation.makeCopy(parts);
  }

  public static final class Each extends AbstractFunction1 {
    private final Narrowing rule;

    public Each(Narrowing rule) {
      this.rule = rule;
    }

    public Object apply(Object plan) {
      return rule.apply((TreeNode) plan);
    }
  }

  /** Spark's scan of a source in Python, whose tasks make fewer columns. */
  public static final class NarrowScan implements Scan, Batch {
    private final Narrowing rule;
    private final Scan whole;
    private final StructType schema;
    private Batch batch;

    public NarrowScan(Narrowing rule, Scan whole, StructType schema) {
      this.rule = rule;
      this.whole = whole;
      this.schema = schema;
    }

    public StructType readSchema() {
      return schema;
    }

    public String description() {
      return whole.description() + " columns: " + String.join(", ", schema.fieldNames());
    }

    public CustomMetric[] supportedCustomMetrics() {
      return whole.supportedCustomMetrics();
    }

    public CustomTaskMetric[] reportDriverMetrics() {
      return whole.reportDriverMetrics();
    }

    public Scan.ColumnarSupportMode columnarSupportMode() {
      return whole.columnarSupportMode();
    }

    public Batch toBatch() {
      if (batch == null) {
        batch = whole.toBatch();
      }
      return this;
    }

    public InputPartition[] planInputPartitions() {
      return batch.planInputPartitions();
    }

    public PartitionReaderFactory createReaderFactory() {
      PartitionReaderFactory factory = batch.createReaderFactory();
      try {
        rule.read.set(factory, narrow((byte[]) rule.read.get(factory)));
        rule.columns.set(factory, schema);
      } catch (IllegalAccessException error) {
        throw new IllegalStateException(error);
      }
      return factory;
    }

    /** A pickle that calls the function in Python with the read's pickle and the names of the columns. */
    private byte[] narrow(byte[] read) {
      byte[] call = ("c" + rule.function + "\n").getBytes(StandardCharsets.UTF_8);
      byte[] names = String.join("\n", schema.fieldNames()).getBytes(StandardCharsets.UTF_8);
      ByteBuffer made = ByteBuffer.allocate(2 + call.length + 5 + read.length + 5 + names.length + 3);
      made.order(ByteOrder.LITTLE_ENDIAN).put((byte) 0x80).put((byte) 3).put(call);
      made.put((byte) 'B').putInt(read.length).put(read);
      made.put((byte) 'X').putInt(names.length).put(names);
      return made.put((byte) 0x86).put((byte) 'R').put((byte) '.').array();
    }
  }
}
